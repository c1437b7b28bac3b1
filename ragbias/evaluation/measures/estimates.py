"""Figures of a summary: ``[estimate, low, high]``, or None without data. Low and high are None with few questions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from ragbias.evaluation import ACCURACY
from ragbias.evaluation.measures import bootstrap, per_question
from ragbias.evaluation.measures.bootstrap import SHARE, Bounds, Estimate, Scores, draws, point, summaries
from ragbias.evaluation.measures.per_question import means
from ragbias.evaluation.runs import Record

MINUS_PLAIN = {  # fields of ``Summaries``: minuend and subtrahend
    "mean": ("mean", "mean"),
    "worst": ("mean", "worst"),
    "best": ("mean", "best"),
    "worst_to_worst": ("worst", "worst"),
    "gap": ("gap", "gap"),
    "by_position": ("by_position", "mean"),
}
NATS = (-math.inf, 0.0)  # bounds of a log-probability
ENDS = ("worst", "best", "gap")  # figures that need several positions


def figures_of(method: Mapping[str, Any], measure: str) -> Mapping[str, Any]:
    """Return the part of a method's summary for one measure. Empty without data."""
    return method if measure == ACCURACY else method[measure] or {}


def curve_figures(scores: Scores, bounds: Bounds = SHARE) -> dict[str, Any]:
    """Compute scores by position, their mean and, for several positions, worst, best, gap and gap by chance."""
    if not scores.questions:
        return {"by_position": {}, "mean": [None] * 3, **dict.fromkeys((*ENDS, "gap_by_chance"))}
    curve = bootstrap.curve(scores, bounds=bounds)
    figures = {name: [interval.as_list() for interval in intervals] for name, intervals in curve.items()}
    several = len(scores.positions) > 1
    return {
        "by_position": _by_position(scores, figures["by_position"]),
        "mean": figures["mean"][0],
        **{name: figures[name][0] if several else None for name in ENDS},
        "gap_by_chance": bootstrap.gap_by_chance(scores) if several else None,
    }


def minus_plain(scores: Scores, plain: Scores, most: float = math.inf) -> dict[str, Any] | None:
    """Compute a method's differences from the plain model, or ``None`` without a common question and position.

    ``mean``, ``worst`` and ``best`` are the method's mean over positions minus the plain model's mean, worst position
    and best position. ``worst_to_worst`` and ``gap`` are the differences of the worst positions and of the gaps.
    ``by_position`` is the method's score at a position minus the plain model's mean. ``most`` is the largest possible
    difference of two scores: 1 for accuracies.
    """
    first, second = scores.in_common(plain)
    if not first.values.size:
        return None
    counts, several = draws(len(first.questions)), len(first.positions) > 1
    ours, theirs = ((point(side.values), summaries(side.values, counts)) for side in (first, second))
    minus: dict[str, Any] = {}
    for name, (of, subtracted) in MINUS_PLAIN.items():
        means = subtracted == "mean"
        once, drawn = (getattr(one, of) - getattr(other, subtracted) for one, other in zip(ours, theirs, strict=True))
        bounds = None if means else (-most, most)
        figures = [interval.as_list() for interval in bootstrap.intervals(once, drawn, bounds)]
        if of == "by_position":
            minus[name] = _by_position(first, figures)
        else:
            minus[name] = figures[0] if several or means else None
    return minus


def share(values: Mapping[str, float]) -> Estimate | None:
    """See ``bootstrap.share``. Return ``None`` without values."""
    return bootstrap.share(values).as_list() if values else None


def _by_position(scores: Scores, figures: Sequence[Estimate]) -> dict[str, Estimate]:
    """Key figures by position for JSON. Omit -1, the position of questions without a gold document."""
    return {str(at): figure for at, figure in zip(scores.positions, figures, strict=True) if at >= 0}


def gold_figures(records: Sequence[Record], scores: Scores, plain: Scores | None) -> dict[str, Any]:
    """Summarise one method's log-probabilities of gold answers.

    The result has the figures of ``curve_figures`` and ``minus_plain``, and three more. ``spread`` is the highest minus
    the lowest value over the orders of the same documents, averaged over questions. ``kl`` is KL(plain || method) of
    the token after the prompt. ``agreement`` is the share of cases with the same most probable token.
    """
    measured = [record for record in records if record.logprob is not None]
    return {
        "questions": len(scores.questions),
        **curve_figures(scores, NATS),
        "minus_plain": None if plain is None else minus_plain(scores, plain),
        "spread": share(per_question.spreads(measured)),
        "kl": share(means(measured, attrgetter("kl"))),
        "agreement": share(means(measured, attrgetter("agrees"))),
        "answer_tokens": sum(record.answer_tokens or 0 for record in measured) / len(measured),
    }
