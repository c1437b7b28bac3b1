"""Measurements of a calibration as plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragbias.calibration.channel_search import Ranking, layer_outputs
from ragbias.evaluation.prompts import Sample

CURVE_POINTS = 200  # of each layer's curve
DIGITS = 6  # significant, of every number


def difference(samples: Sequence[Sample], found: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    """Mean difference from plain, and its standard error over questions (their depths are not independent)."""
    steps = [ours - theirs for ours, theirs in zip(found, plain, strict=True)]
    by_question = list(_means([sample.question for sample in samples], steps).values())
    error = stdev(by_question) / len(by_question) ** 0.5 if len(by_question) > 1 else 0.0
    return {"difference": mean(by_question), "standard_error": error}


def is_clear_gain(against_plain: Mapping[str, float]) -> bool:
    """Whether a ``difference`` is below 0 by more than two standard errors. One question has none, so never is."""
    error = against_plain["standard_error"]
    return error > 0 and against_plain["difference"] < -2 * error


def loss_by_depth(samples: Sequence[Sample], found: Sequence[float]) -> dict[str, Any]:
    """Mean loss, also by the position of the gold document, counted from 1."""
    by_depth = _means([sample.gold + 1 for sample in samples], found)
    return {"loss": mean(found), "by_depth": {str(depth): by_depth[depth] for depth in sorted(by_depth)}}


def _means(keys: Sequence[int], values: Sequence[float]) -> dict[int, float]:
    groups = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        groups[key].append(value)
    return {key: mean(group) for key, group in groups.items()}


def search_record(ranking: Ranking, states: NDArray[np.float64]) -> dict[str, Any]:
    """The channels that passed, those that were tried, and every channel that is monotone somewhere.

    ``position_correlation`` is Pearson's correlation of a tried channel's mean with the position, by layer, over the
    positions of the monotone test. ``smoothness`` is the roughness.
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
    """A channel's mean by position, thinned to ``CURVE_POINTS``, for the output of each layer."""
    outputs = layer_outputs(states)[:, :, channel]
    points = np.unique(np.linspace(0, outputs.shape[1] - 1, min(CURVE_POINTS, outputs.shape[1])).astype(int))
    by_layer = {str(layer): values[points].tolist() for layer, values in enumerate(outputs)}
    return {"positions": points.tolist(), "by_layer": by_layer}


def rounded(data: Any) -> Any:
    """Plain data with floats rounded to ``DIGITS`` significant digits, and tuples as lists."""
    if isinstance(data, dict):
        return {name: rounded(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [rounded(value) for value in data]
    return float(f"{data:.{DIGITS}g}") if isinstance(data, float) else data
