"""What was measured in a calibration, as a profile keeps it: plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ragbias.calibration.calibration_set import CalibrationSet
from ragbias.calibration.calibration_settings import CalibrationPlan
from ragbias.calibration.channel_search import Ranking, layer_outputs
from ragbias.evaluation.prompts.samples import Sample
from ragbias.methods import ChannelScaling, NoMethod

CURVE_POINTS = 200  # of each layer's curve
DIGITS = 6  # significant ones, of every number

Measured = dict[ChannelScaling | NoMethod, list[float]]


@dataclass(frozen=True)
class Found:
    """All that was measured.

    Attributes:
        data: the calibration set.
        states: mean hidden states ``[n_hs, T, D]``; ``ranking``: the channels found in them.
        attention: per layer, to the gold document and to another one; ``ranges``: the layers compared.
        losses: of ``data.choose``, by method; ``together``: those of the best two channels scaled together.
        chosen: the method with the lowest of them.
        check: losses of ``data.check``, plain and as chosen.
    """

    data: CalibrationSet
    states: NDArray[np.float64]
    ranking: Ranking
    attention: Sequence[Sequence[float]]
    ranges: dict[str, tuple[int, int]]
    losses: Measured
    together: Measured
    chosen: ChannelScaling
    check: Measured

    @property
    def channel(self) -> int:
        """The one that is scaled."""
        (channel,) = self.chosen.channels
        return channel


def profile_record(plan: CalibrationPlan, found: Found) -> dict[str, Any]:
    """The measurements as they stand in a profile."""
    choose, check = found.data.choose, found.data.check
    plain, scaled = found.losses[NoMethod()], found.losses[found.chosen]
    check_plain, check_scaled = found.check[NoMethod()], found.check[found.chosen]
    against_plain = difference(check, check_scaled, check_plain)
    whole = {
        "beats_plain": is_clear_gain(against_plain),
        "check": {
            "plain": loss_by_depth(check, check_plain),
            "scaled": loss_by_depth(check, check_scaled),
            **against_plain,
        },
        "choice": {
            "plain": loss_by_depth(choose, plain),
            "scaled": {"by_depth": loss_by_depth(choose, scaled)["by_depth"]},  # its loss is among all losses
        },
        "losses": _rows(found.losses, choose, plain),
        **({"two_channels": _rows(found.together, choose, plain)} if found.together else {}),
        "layer_search": {
            "attention_by_layer": [
                {"layer": layer, "gold": gold, "other": other} for layer, (gold, other) in enumerate(found.attention)
            ],
            "ranges": found.ranges,
        },
        "channel_search": search_record(found.ranking, found.states),
        "curve": curve(found.states, found.channel),
        "settings": {**plan.as_dict(), "samples": len(choose), "check_samples": len(check)},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    return {name: rounded(value) for name, value in whole.items()}


def _rows(losses: Measured, samples: Sequence[Sample], plain: Sequence[float]) -> list[dict[str, Any]]:
    """Each setting with its loss, and the difference from plain."""
    return [
        {
            "channel": method.channel,
            "factor": method.factor,
            "layers": method.layers,
            "loss": mean(values),
            **difference(samples, values, plain),
        }
        for method, values in losses.items()
        if isinstance(method, ChannelScaling)
    ]


def difference(samples: Sequence[Sample], found: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    """Mean difference from plain, and its standard error over questions (their depths are not independent)."""
    steps = [ours - theirs for ours, theirs in zip(found, plain, strict=True)]
    by_question = list(_means([sample.question for sample in samples], steps).values())
    error = stdev(by_question) / len(by_question) ** 0.5 if len(by_question) > 1 else 0.0
    return {"difference": mean(by_question), "standard_error": error}


def is_clear_gain(against_plain: Mapping[str, float]) -> bool:
    """Whether a ``difference`` is below 0 by more than two standard errors; never by one question, which has none."""
    error = against_plain["standard_error"]
    return error > 0 and against_plain["difference"] < -2 * error


def loss_by_depth(samples: Sequence[Sample], found: Sequence[float]) -> dict[str, Any]:
    """Mean loss, and by the position of the gold document, counted from 1."""
    by_depth = _means([sample.gold + 1 for sample in samples], found)
    return {"loss": mean(found), "by_depth": {str(depth): by_depth[depth] for depth in sorted(by_depth)}}


def _means(keys: Sequence[int], values: Sequence[float]) -> dict[int, float]:
    """The mean of the values of each key."""
    groups = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        groups[key].append(value)
    return {key: mean(group) for key, group in groups.items()}


def search_record(ranking: Ranking, states: NDArray[np.float64]) -> dict[str, Any]:
    """The channels that passed, those that were tried, and every channel that is monotone somewhere.

    ``position_correlation`` is Pearson's, of a tried channel's mean value with the position where the monotone test
    looks, by layer: near 1 or -1 where the position is most of what the curve shows. ``smoothness`` is the roughness.
    """
    tested = layer_outputs(states)[ranking.searched.first : ranking.searched.last + 1, ranking.searched.skip_fit :]
    positions = np.arange(tested.shape[1])
    correlation = {
        str(channel): {
            str(layer): float(np.corrcoef(positions, curves[:, channel])[0, 1])
            for layer, curves in enumerate(tested, start=ranking.searched.first)
        }
        for channel in ranking.ranked
    }
    return {
        "passed": ranking.passed,
        "tried": ranking.ranked,
        "windows": asdict(ranking.searched),
        "smoothness": {str(channel): value for channel, value in ranking.roughness.items()},
        "position_correlation": correlation,
        "monotone_layers": {str(channel): layers for channel, layers in ranking.monotone.items() if layers},
    }


def curve(states: NDArray[np.float64], channel: int) -> dict[str, Any]:
    """A channel's mean value against position, thinned to ``CURVE_POINTS``, for the output of each layer."""
    outputs = layer_outputs(states)[:, :, channel]
    points = np.unique(np.linspace(0, outputs.shape[1] - 1, min(CURVE_POINTS, outputs.shape[1])).astype(int))
    by_layer = {str(layer): values[points].tolist() for layer, values in enumerate(outputs)}
    return {"positions": points.tolist(), "by_layer": by_layer}


def rounded(data: Any) -> Any:
    """Plain data with every float rounded to ``DIGITS`` significant digits, tuples as lists."""
    if isinstance(data, dict):
        return {name: rounded(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [rounded(value) for value in data]
    return float(f"{data:.{DIGITS}g}") if isinstance(data, float) else data
