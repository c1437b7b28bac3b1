"""Figures as a summary holds them: ``[estimate, low, high]``, without an interval where there are too few questions.

A figure without data is ``None``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from ragbias.evaluation.measures import bootstrap
from ragbias.evaluation.measures.bootstrap import LIKE, SHARE, Figures, Interval, Scores
from ragbias.evaluation.names import ACCURACY

Estimate: TypeAlias = list[float | None]
MINUS_PLAIN: Figures = {
    "mean": ("mean", "mean"),
    "worst": ("mean", "worst"),
    "best": ("mean", "best"),
    "worst_to_worst": ("worst", "worst"),
    "gap": ("gap", "gap"),
}
ENDS = ("worst", "best", "gap")  # what there is of several positions only


def figures_of(method: Mapping[str, Any], measure: str) -> Mapping[str, Any]:
    """The part of a method's summary that is of one measure; empty where that was not measured of it."""
    return method if measure == ACCURACY else method[measure] or {}


def curve_figures(scores: Scores, bounds: tuple[float, float] = SHARE) -> dict[str, Any]:
    """``by_position``, ``mean``, and of several positions ``worst``, ``best``, ``gap`` and ``gap_by_chance``.

    Args:
        bounds: the least and the most that a score may be.
    """
    if not scores.questions:
        return {"by_position": {}, "mean": [None] * 3, **dict.fromkeys((*ENDS, "gap_by_chance"))}
    found = bootstrap.curve(scores, bounds=bounds)
    figures = {name: [estimate(each) for each in intervals] for name, intervals in found.items()}
    several = len(scores.positions) > 1
    return {
        "by_position": _shown(dict(zip(scores.positions, figures["by_position"], strict=True))),
        "mean": figures["mean"][0],
        **{name: figures[name][0] if several else None for name in ENDS},
        "gap_by_chance": bootstrap.gap_by_chance(scores) if several else None,
    }


def differences(own: Scores, reference: Scores, figures: Figures = LIKE, most: float = 1) -> dict[str, Estimate] | None:
    """As ``bootstrap.differences``; ``None`` where the two have nothing in common."""
    if not own.in_common(reference)[0].values.size:
        return None
    found = bootstrap.differences(own, reference, figures, most)
    return {name: estimate(interval) for name, interval in found.items()}


def minus_plain(own: Scores, plain: Scores, most: float = math.inf) -> dict[str, Any] | None:
    """The differences of a method to the plain model; ``None`` where the two have nothing in common.

    Args:
        most: the most that two scores may differ: 1 for accuracies.

    Returns:
        ``mean``, ``worst`` and ``best`` are the method's mean over positions minus the plain model's mean over
        positions, its worst and its best one; ``worst_to_worst`` and ``gap`` are differences of like figures;
        ``by_position`` is the method at each position minus the plain mean.
    """
    found = differences(own, plain, MINUS_PLAIN, most)
    if found is None:
        return None
    several = len(own.in_common(plain)[0].positions) > 1
    like = {name: figure if several or name == "mean" else None for name, figure in found.items()}
    return {**like, "by_position": _shown({at: estimate(each) for at, each in bootstrap.relative(own, plain).items()})}


def share(values: Mapping[str, float]) -> Estimate | None:
    """A mean over questions with its interval; ``None`` without values."""
    return estimate(bootstrap.share(values)) if values else None


def estimate(interval: Interval) -> Estimate:
    return [value if math.isfinite(value) else None for value in interval.as_list()]


def _shown(by_position: Mapping[int, Estimate]) -> dict[str, Estimate]:
    """By position as JSON has it, without the -1 of questions that have no gold document."""
    return {str(position): figure for position, figure in by_position.items() if position >= 0}
