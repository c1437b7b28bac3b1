"""Searches without one criterion, on hidden states with a planted channel and on the embedded model."""

import json

import numpy as np
import pytest

from ragbias.methods import ChannelScaling, parse_methods
from ragbias_eval.calibration.channel_search import rank_channels
from studies.channel_criteria import choose_methods, rank_without_each


def states(rough: float, channels: dict[int, range]) -> np.ndarray:
    """Waves in 16 channels; the planted channels fall with the position, and channel 5 is rough."""
    wave = np.cos(np.linspace(0, 12 * np.pi, 400))
    made = wave[None, :, None] * np.random.default_rng(0).uniform(0.5, 1, (13, 1, 16))
    for channel, layers in channels.items():
        for layer in layers:
            noise = np.random.default_rng(layer).standard_normal(400)
            made[layer + 1, :, channel] = np.linspace(5, -5, 400) + (rough if channel == 5 else 0.01) * noise
    return made


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_without_monotonicity_all_channels_rank_by_smoothness(variant):
    made = states(0.5, {5: range(2, 11)})
    assert rank_channels(made).ranked == [5]
    ranked = rank_without_each(made, variant)["monotonicity"]
    assert sorted(ranked) == list(range(16)) and ranked[-1] == 5


def test_without_smoothness_the_most_monotone_ranks_first():
    ranked = rank_without_each(states(0.1, {4: range(3, 9), 5: range(2, 11)}), "released")
    assert ranked["all"] == [4, 5] and ranked["smoothness"] == [5, 4]


def test_without_validation_only_the_first_channel_is_scaled():
    measured = []

    def measure(methods):
        measured.append(methods)
        return {method: 5.0 + method.factor - sum(method.channels) for method in methods}

    chosen = choose_methods({"all": [1, 2, 3]}, (0, 1), measure)
    assert chosen == {
        "all": ChannelScaling(3, -1.0, layers=(0, 1)),
        "pair": ChannelScaling((3, 2), -1.0, layers=(0, 1)),
        "validation": ChannelScaling(1, -1.0, layers=(0, 1)),
    }
    assert {method.channels for methods in measured[3:] for method in methods} == {(1,)}


def test_the_program_compares_the_methods_with_the_plain_model(study, tmp_path):
    sizes = ("--strings=8", "--length=64", "--questions=1", "--documents=3", "--depths=2")
    code, output, _ = study("channel_criteria", "--model=tiny", "--json", tmp_path / "found.json", *sizes)
    found = json.loads((tmp_path / "found.json").read_text())
    assert code == 0 and list(found["without"]) == ["all", "pair", "monotonicity", "smoothness", "validation"]
    for row in found["without"].values():
        assert parse_methods(row["method"], "tiny")
        assert row["difference"] == pytest.approx(row["loss"] - found["plain"])
    assert "without scaling" in output and "standard error" in output
