"""The figures of the gold answer's log-probability, in nats: by position, against the plain model, and KL to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ragbias.evaluation.measures import per_question
from ragbias.evaluation.measures.bootstrap import Figures, Scores
from ragbias.evaluation.measures.estimates import curve_figures, differences, relative, share
from ragbias.evaluation.measures.per_question import means

if TYPE_CHECKING:
    from ragbias.evaluation.data.records import Record  # takes pydantic, which the demo does without

NATS = (-math.inf, 0.0)
MINUS_PLAIN: Figures = {
    "mean": ("mean", "mean"),
    "worst": ("mean", "worst"),
    "best": ("mean", "best"),
    "worst_to_worst": ("worst", "worst"),
    "gap": ("gap", "gap"),
}


def gold_figures(records: Sequence[Record], own: Scores, plain: Scores | None) -> dict[str, Any]:
    """What a method makes of the gold answers, each figure ``[estimate, low, high]``, paired by question.

    Args:
        records: the method's.
        own, plain: log-probabilities of the method and of ``none``; None: that did not run.

    Returns:
        ``by_position``, ``mean`` over positions, and where there are several positions ``worst``, ``best``, ``gap`` and
        ``gap_by_chance``, as of accuracy. ``minus_plain``: ``mean``, ``worst`` and ``best`` are the method's mean over
        positions minus the plain model's mean over positions, its worst and its best one; ``worst_to_worst`` and
        ``gap`` are differences of like figures; ``by_position`` is the method at each position minus the plain mean.
        ``spread`` is the mean over questions of the highest minus the lowest over all orders of the same documents.
        ``kl`` and ``agreement`` compare the token after the prompt with the plain model's: KL(plain || method), and how
        often both find the same token the most probable.
    """
    measured = [each for each in records if each.logprob is not None]
    return {
        "questions": len(own.questions),
        **curve_figures(own, NATS),
        "minus_plain": None if plain is None else minus_plain(own, plain),
        "spread": share(per_question.spreads(measured)),
        "kl": share(means(measured, attrgetter("kl"))),
        "agreement": share(means(measured, attrgetter("agrees"))),
        "answer_tokens": sum(each.answer_tokens or 0 for each in measured) / len(measured),
    }


def minus_plain(own: Scores, plain: Scores) -> dict[str, Any] | None:
    """As in ``gold_figures``; ``None`` where the two have nothing in common."""
    found = differences(own, plain, MINUS_PLAIN, math.inf)
    if found is None:
        return None
    several = len(own.in_common(plain)[0].positions) > 1
    like = {name: figure if several or name == "mean" else None for name, figure in found.items()}
    return {**like, "by_position": relative(own, plain)}
