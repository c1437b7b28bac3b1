"""The figures of the gold answer's log-probability, in nats: by position, against the plain model, and KL to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from ragbias.evaluation.data.records import Record
from ragbias.evaluation.measures import bootstrap, per_question
from ragbias.evaluation.measures.bootstrap import FEWEST, Scores
from ragbias.evaluation.measures.estimates import alone, curve, estimate, share
from ragbias.evaluation.measures.per_question import means

NATS = (-math.inf, 0.0)


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
    figures = curve(own, NATS)
    several = len(own.positions) > 1
    measured = [each for each in records if each.logprob is not None]
    return {
        "questions": len(own.questions),
        "by_position": {
            str(position): figure
            for position, figure in zip(own.positions, figures["by_position"], strict=True)
            if position >= 0
        },
        "mean": figures["mean"][0],
        **{name: figures[name][0] if several else None for name in ("worst", "best", "gap")},
        "gap_by_chance": bootstrap.gap_by_chance(own) if several else None,
        "minus_plain": None if plain is None else _minus(own, plain),
        "spread": share(per_question.spreads(measured)),
        "kl": share(means(measured, attrgetter("kl"))),
        "agreement": share(means(measured, attrgetter("agrees"))),
        "answer_tokens": sum(each.answer_tokens or 0 for each in measured) / len(measured),
    }


def _minus(own: Scores, plain: Scores) -> dict[str, Any] | None:
    first, second = own.in_common(plain)
    if not first.values.size:
        return None
    several = len(first.positions) > 1
    if len(first.questions) >= FEWEST:
        like = bootstrap.differences(own, plain, math.inf)
        ends = bootstrap.differences_to_ends(own, plain, math.inf)
        figures = {
            "mean": estimate(like["mean"]),
            **{name: estimate(each) for name, each in ends.items()},
            "worst_to_worst": estimate(like["worst"]),
            "gap": estimate(like["gap"]),
        }
        at = {position: estimate(each) for position, each in bootstrap.relative(own, plain).items()}
    else:
        ours, theirs = bootstrap.point(first.values), bootstrap.point(second.values)
        figures = {name: alone((ours.mean - getattr(theirs, name))[0]) for name in ("mean", "worst", "best")}
        figures["worst_to_worst"] = alone((ours.worst - theirs.worst)[0])
        figures["gap"] = alone((ours.gap - theirs.gap)[0])
        by_position = ours.by_position[0] - theirs.mean[0]
        at = {position: alone(value) for position, value in zip(first.positions, by_position, strict=True)}
    return {
        **{name: figure if several or name == "mean" else None for name, figure in figures.items()},
        "by_position": {str(position): figure for position, figure in at.items() if position >= 0},
    }
