"""What a profile keeps of the measurements, as plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragbias.calibration.loss import Scaling
from ragbias.calibration.samples import Sample
from ragbias.calibration.statistics import Ranking, layer_outputs

CURVE_POINTS = 200  # of each layer's curve


def loss_row(
    samples: Sequence[Sample], scaling: Scaling, found: Sequence[float], plain: Sequence[float]
) -> dict[str, Any]:
    """A setting, its loss and its difference from the plain model."""
    channel, factor, layers = scaling
    row = {"channel": channel, "factor": factor, "layers": list(layers), "loss": _short(mean(found))}
    return {**row, **difference(samples, found, plain)}


def difference(samples: Sequence[Sample], found: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    """Mean difference from plain, and its standard error over questions (their depths are not independent)."""
    by_question = defaultdict(list)
    for sample, ours, theirs in zip(samples, found, plain, strict=True):
        by_question[sample.question].append(ours - theirs)
    steps = [mean(values) for values in by_question.values()]
    error = stdev(steps) / len(steps) ** 0.5 if len(steps) > 1 else 0.0
    return {"difference": _short(mean(steps)), "standard_error": _short(error)}


def losses_by_depth(samples: Sequence[Sample], found: Sequence[float]) -> dict[str, Any]:
    """Mean loss, and by the place of the gold document, counted from 1."""
    by_depth = defaultdict(list)
    for sample, value in zip(samples, found, strict=True):
        by_depth[sample.gold + 1].append(value)
    return {"loss": _short(mean(found)), "by_depth": {str(at): _short(mean(by_depth[at])) for at in sorted(by_depth)}}


def search_record(ranking: Ranking, states: NDArray[np.float64]) -> dict[str, Any]:
    """The channels that passed, those that were tried, and every channel that is monotone somewhere.

    ``position_correlation`` is Pearson's, of a tried channel's mean value with the position where the monotone test
    looks, by layer: near 1 or -1 where the position is most of what the curve shows.
    """
    tested = layer_outputs(states)[ranking.windows.first : ranking.windows.last + 1, ranking.windows.skip_fit :]
    positions = np.arange(tested.shape[1])
    correlation = {
        str(channel): {
            str(layer): round(float(np.corrcoef(positions, curves[:, channel])[0, 1]), 3)
            for layer, curves in enumerate(tested, start=ranking.windows.first)
        }
        for channel in ranking.ranked
    }
    return {
        "rule": "number of monotone layers (no channel passed Algorithm 1)" if ranking.fallback else "Algorithm 1",
        "passed": ranking.passed,
        "tried": ranking.ranked,
        "windows": asdict(ranking.windows),
        "smoothness": {str(c): float(f"{value:.6g}") for c, value in ranking.smoothness.items()},
        "position_correlation": correlation,
        "monotone_layers": {str(c): layers for c, layers in ranking.monotone.items() if layers},
    }


def layer_record(attention: Sequence[tuple[float, float]], ranges: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Which layers retrieve, and the ranges that were compared."""
    return {
        "attention_by_layer": [
            {"layer": layer, "gold": float(f"{gold:.4g}"), "other": float(f"{other:.4g}")}
            for layer, (gold, other) in enumerate(attention)
        ],
        "ranges": {name: list(layers) for name, layers in ranges.items()},
    }


def curve(states: NDArray[np.float64], channel: int) -> dict[str, Any]:
    """A channel's mean value against position, thinned to ``CURVE_POINTS``, for the output of each layer."""
    outputs = layer_outputs(states)[:, :, channel]
    points = np.unique(np.linspace(0, outputs.shape[1] - 1, min(CURVE_POINTS, outputs.shape[1])).astype(int))
    by_layer = {str(layer): [float(f"{value:.4g}") for value in row[points]] for layer, row in enumerate(outputs)}
    return {"positions": points.tolist(), "by_layer": by_layer}


def _short(value: float) -> float:
    return round(value, 6)
