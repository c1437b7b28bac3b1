"""Figures as a summary holds them: ``[estimate, low, high]``, without an interval where there are too few questions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import TypeAlias

from ragbias.evaluation.measures import bootstrap
from ragbias.evaluation.measures.bootstrap import FEWEST, SHARE, Interval, Scores

Estimate: TypeAlias = list[float | None]


def curve(scores: Scores, bounds: tuple[float, float] = SHARE) -> dict[str, list[Estimate]]:
    """As ``bootstrap.curve``."""
    if len(scores.questions) >= FEWEST:
        return {
            name: [estimate(each) for each in found] for name, found in bootstrap.curve(scores, bounds=bounds).items()
        }
    point = bootstrap.point(scores.values)
    figures = {name: [alone(getattr(point, name)[0])] for name in ("mean", "worst", "best", "gap")}
    return {"by_position": [alone(value) for value in point.by_position[0]], **figures}


def share(values: Mapping[str, float]) -> Estimate | None:
    """A mean over questions with its interval; ``None`` where there are no values."""
    if not values:
        return None
    return estimate(bootstrap.share(values)) if len(values) >= FEWEST else alone(fmean(values.values()))


def estimate(interval: Interval) -> Estimate:
    return [value if math.isfinite(value) else None for value in interval.as_list()]


def alone(value: float) -> Estimate:
    """A figure without an interval."""
    value = float(value)
    return [value if math.isfinite(value) else None, None, None]
