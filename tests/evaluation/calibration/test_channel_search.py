"""The channel search against the authors' code, and on hidden states with a planted channel."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.signal import savgol_filter

from ragbias.errors import MethodError
from ragbias_eval.calibration.channel_search import NoPositionalChannelError, SearchRange, layer_outputs, rank_channels

GOLDEN = Path(__file__).parents[2] / "golden" / "channel_search"


@pytest.mark.parametrize("name", [path.stem for path in sorted(GOLDEN.glob("*.json"))])
def test_search_equals_the_reference(name):
    info = json.loads((GOLDEN / f"{name}.json").read_text())
    states = load_file(GOLDEN / f"{name}.safetensors")["golden.hidden_states_mean"].astype(np.float64)
    n_layers = info["num_hidden_states"] - info["embedding_dropped"]
    search_range = replace(
        SearchRange.for_shape(n_layers, states.shape[1]), skip_fit=info["skip_mono"], skip_smooth=info["skip_smooth"]
    )
    found = rank_channels(states, info["topk"], search_range)
    assert found.monotone == {int(channel): layers for channel, layers in info["mono_layers"].items()}
    assert found.passed == info["candidates_stage1"]
    assert found.ranked == info["candidates"]
    assert found.roughness == pytest.approx({int(c): value for c, value in info["smoothness"].items()}, rel=1e-4)


def planted(n_hs: int, length: int, channels: dict[int, range], seed: int = 0) -> np.ndarray:
    """Return hidden states with waves in 16 channels and planted channels that follow the position in some layers.

    The waves have whole periods, so no cubic fit is monotone by chance. Layers are counted without the embeddings.
    """
    rng = np.random.default_rng(seed)
    wave = np.cos(np.linspace(0, 12 * np.pi, length))
    states = wave[None, :, None] * rng.uniform(0.5, 1, (n_hs, 1, 16))
    for channel, layers in channels.items():
        for layer in layers:
            states[layer + 1, :, channel] = np.linspace(5, -5, length) + 0.01 * rng.standard_normal(length)
    return states


@pytest.mark.parametrize("length", [64, 300, 1000])
def test_a_planted_channel_is_found_at_any_length(length):
    found = rank_channels(planted(13, length, {5: range(3, 9), 9: range(2, 5)}))
    assert found.passed == [5] == found.ranked  # 9 is monotone in 3 of 12 layers, and more than 3 are asked for
    assert set(range(3, 9)) <= set(found.monotone[5])


def test_smoother_channels_come_first_and_only_the_top_stays():
    states = planted(13, 1000, {2: range(2, 11), 3: range(2, 11), 4: range(2, 11)})
    states[:, :, 2] += 0.5 * np.random.default_rng(1).standard_normal(states.shape[:2])
    found = rank_channels(states, top=2)
    assert found.passed == [2, 3, 4]
    assert set(found.ranked) == {3, 4}
    assert found.roughness[2] > max(found.roughness[3], found.roughness[4])


def test_without_candidates_the_most_monotone_channels_rank():
    found = rank_channels(planted(13, 400, {5: range(4, 7), 9: range(4, 6)}))
    assert found.passed == []
    assert found.ranked[0] == 5


def noisy(states, channel, layers, by=0.5):
    """Return the states with a channel that is rough in some of its layers."""
    for layer in layers:
        states[layer + 1, :, channel] += by * np.random.default_rng(layer).standard_normal(states.shape[1])
    return states


def test_roughness_is_a_mean_in_the_paper_and_a_minimum_in_code():
    states = noisy(planted(13, 1000, {2: range(2, 11), 3: range(2, 11)}), 2, range(3, 11))
    states = noisy(states, 3, range(2, 11), by=0.05)
    assert rank_channels(states).ranked == [2, 3]  # one layer of channel 2 is smooth
    assert rank_channels(states, variant="paper").ranked == [3, 2]
    found = rank_channels(states, variant="paper")
    assert found.search_range == SearchRange(30, 30, 2, 10)
    by_layer = []
    for layer in range(2, 11):
        curve = layer_outputs(states)[layer, 30:, 3]
        smooth = savgol_filter((curve - curve.min()) / np.ptp(curve), 10, 3)
        by_layer.append((np.diff(smooth, n=2) ** 2).sum())
    assert found.roughness[3] == pytest.approx(np.mean(by_layer))


def test_no_monotone_channel_at_all_is_an_error():
    with pytest.raises(NoPositionalChannelError, match="none of the 16 channels"):
        rank_channels(planted(13, 400, {}))
    with pytest.raises(NoPositionalChannelError, match="none of the 3 channels"):
        rank_channels(np.ones((5, 100, 3)))


def test_embeddings_are_dropped_if_the_number_of_states_is_odd():
    assert layer_outputs(np.zeros((13, 4, 2))).shape[0] == 12
    assert layer_outputs(np.zeros((12, 4, 2))).shape[0] == 12


def test_the_papers_range_shrinks_with_strings_and_layers():
    assert SearchRange.for_shape(32, 1000) == SearchRange(300, 200, 2, 30) == SearchRange.for_shape(32, 4000)
    assert SearchRange.for_shape(4, 100) == SearchRange(30, 20, 0, 2)
    assert SearchRange.for_shape(32, 1000, "paper") == SearchRange(30, 30, 2, 30)
    assert SearchRange.for_shape(32, 100, "paper") == SearchRange(3, 3, 2, 30)
    with pytest.raises(MethodError, match="19 tokens are too short; expected at least 20"):
        SearchRange.for_shape(32, 19)
    found = rank_channels(planted(5, 20, {5: range(3)}))
    assert 5 in found.ranked
