"""Bootstrap confidence intervals of a mean over questions, and their format in tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
MIN_QUESTIONS = 5  # minimum number of questions for an interval
LEVEL = 95  # per cent
NO_VALUE = "-"

Estimate: TypeAlias = list[float | None]
Figure: TypeAlias = Sequence[float | None] | None  # [estimate, low, high]
Floats: TypeAlias = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate and its 95% bootstrap interval. With too few questions, ``low`` and ``high`` are NaN."""

    estimate: float
    low: float
    high: float

    def as_list(self) -> Estimate:
        """Return ``[estimate, low, high]`` for JSON, with None for NaN."""
        return [value if math.isfinite(value) else None for value in (self.estimate, self.low, self.high)]


def share(values: Mapping[str, float]) -> Interval:
    """Compute the mean of one value per question, and its interval."""
    by_question = np.array([values[question] for question in sorted(values)], dtype=float)
    counts = draw_counts(len(by_question))
    return percentile_interval(float(by_question.mean()), counts @ by_question / len(by_question))


@lru_cache(maxsize=2)
def draw_counts(questions: int, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """Draw bootstrap resamples. Return how often each contains each question, ``[resamples, questions]``.

    With fewer than ``MIN_QUESTIONS`` questions, there are no resamples.
    """
    if questions < MIN_QUESTIONS:
        return np.empty((0, questions))
    indices = np.random.default_rng(seed).integers(questions, size=(resamples, questions))
    indices += questions * np.arange(resamples)[:, None]
    counts = np.bincount(indices.ravel(), minlength=resamples * questions).reshape(resamples, questions).astype(float)
    counts.flags.writeable = False
    return counts


def percentile_interval(estimate: float, resampled: Floats) -> Interval:
    """Compute the percentile interval of a mean."""
    low, high = percentiles(resampled)
    return Interval(estimate, min(low, estimate), max(high, estimate))  # a biased resample may exclude the estimate


def percentiles(resampled: Floats) -> tuple[float, float]:
    """Return the ends of the percentile interval, or NaN without resamples."""
    tail = (100 - LEVEL) / 2
    low, high = np.nanpercentile(resampled, [tail, 100 - tail]) if len(resampled) else (math.nan, math.nan)
    return float(low), float(high)


def format_estimate(figure: Figure, form: str = ".2f", prefix: str = "") -> str:
    """Format an estimate without its interval, such as ``0.71``."""
    return NO_VALUE if not figure or figure[0] is None else prefix + _format_number(figure[0], form)


def format_figure(figure: Figure, form: str = ".2f", prefix: str = "") -> str:
    """Format an estimate as ``0.71 (0.62 to 0.79)``, or as ``0.71`` if there is no interval."""
    text = format_estimate(figure, form, prefix)
    if not figure or None in figure:
        return text
    ends = [prefix + _format_number(end, form) for end in figure[1:] if end is not None]
    return f"{text} ({' to '.join(ends)})"


def _format_number(value: float, form: str) -> str:
    """Format a number. Zero has no minus sign."""
    text = format(value, form)
    return text if text.strip("-0.%") else format(0.0, form)
