"""The figures of the gold answer's log-probability, in nats: by position, against the plain model, and KL to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ragbias.evaluation.measures import per_question
from ragbias.evaluation.measures.bootstrap import Scores
from ragbias.evaluation.measures.estimates import curve_figures, minus_plain, share
from ragbias.evaluation.measures.per_question import means

if TYPE_CHECKING:
    from ragbias.evaluation.data.records import Record  # takes pydantic, which the demo does without

NATS = (-math.inf, 0.0)


def gold_figures(records: Sequence[Record], own: Scores, plain: Scores | None) -> dict[str, Any]:
    """The gold answers under a method, each figure ``[estimate, low, high]``, paired by question.

    Args:
        records: the method's.
        own, plain: log-probabilities of the method and of ``none``; None: that did not run.

    Returns:
        ``by_position``, ``mean`` over positions, and where there are several positions ``worst``, ``best``, ``gap`` and
        ``gap_by_chance``, as of accuracy, and ``minus_plain``, see ``estimates.minus_plain``.
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
