"""Aggregates of a bench as plain data for JSON, with an entry per model, task and number of documents.

Figures with an interval are lists ``[estimate, low, high]``, or None without data. With too few questions, ``low`` and
``high`` are None, and a note explains this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean, median
from typing import Any, TypeAlias

from ragbias.evaluation import ACCURACY, JUDGES, LOGPROB, REFERENCE
from ragbias.evaluation.measures import bootstrap, per_question
from ragbias.evaluation.measures.bootstrap import FEWEST, SHARE, Bounds, Estimate, Scores, draws, point, summaries
from ragbias.evaluation.measures.per_question import grouped, means
from ragbias.evaluation.runs import Record, cost_key

SCORE = attrgetter("score")

Setting: TypeAlias = tuple[str, str, int]  # model, task, number of documents
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


def summarise(
    records: Sequence[Record], cost: Mapping[str, Mapping[str, Any]] | None = None, noise: Sequence[Record] = ()
) -> dict[str, Any]:
    """Compute all aggregates of a run.

    Args:
        records: records of all answers.
        cost: costs by ``runs.cost_key`` and label, which become part of the result.
        noise: records of repeated cases, for the noise floor.

    Returns:
        ``results``: an entry for each model, task and number of documents, with ``methods`` by label. Positions are
        counted from 0. ``kendall_tau`` is the agreement between the orders in which the model read the same documents.
    """
    settings = dict(sorted(grouped(records, setting_of).items()))
    repeated = grouped(noise, setting_of)
    results = []
    for setting, setting_records in settings.items():
        named = dict(zip(("model", "task", "documents"), setting, strict=True))
        costs = (cost or {}).get(cost_key(*setting), {})
        results.append({**named, **_methods(setting_records, repeated.get(setting, []), costs)})
    return {"resamples": bootstrap.RESAMPLES, "interval_percent": bootstrap.LEVEL, "results": results}


def setting_of(record: Record) -> Setting:
    return record.model, record.task, record.documents


def _methods(records: Sequence[Record], noise: Sequence[Record], costs: Mapping[str, Any]) -> dict[str, Any]:
    """Aggregate the methods of one setting (model, task, number of documents), and add notes."""
    parts, again = grouped(records, attrgetter("method")), grouped(noise, attrgetter("method"))
    scores = {label: Scores.of(answered(answers)) for label, answers in parts.items()}
    golds = {label: Scores.of(answers, "logprob") for label, answers in parts.items()}
    methods = {}
    for label, answers in parts.items():
        accuracy, plain = curve_figures(scores[label]), scores.get(REFERENCE)
        methods[label] = {
            "questions": len({record.question for record in answers}),
            "rows": len(answers),
            "accuracy_by_position": accuracy.pop("by_position"),
            **accuracy,
            "minus_plain": minus_plain(scores[label], plain, 1) if plain else None,
            **_consistency(answers, again.get(label, [])),
            "logprob": gold_figures(answers, golds[label], golds.get(REFERENCE)) if golds[label].questions else None,
            "kendall_tau": share(per_question.order_agreement(answers)),
            "prompt_tokens": fmean(record.prompt_tokens for record in answers),
            "completion_tokens": fmean(record.completion_tokens for record in answers),
            "seconds": median(record.seconds for record in answers),
            "ran_plain": _ran_plain(label, answers),
            "groups": _groups(answered(answers)),
            **({"judge": _judge(answered(answers))} if answers[0].task in JUDGES and scores[label].questions else {}),
            **({"cost": dict(costs[label])} if label in costs else {}),
        }
    measured = {
        measure: [curve for curve in by_label.values() if curve.questions]
        for measure, by_label in ((ACCURACY, scores), (LOGPROB, golds))
    }
    measured_curves = [curve for curves in measured.values() for curve in curves]
    return {
        "measures": [measure for measure, curves in measured.items() if curves],
        "positions": sorted({position for curve in measured_curves for position in curve.positions if position >= 0}),
        "methods": methods,
        "notes": _notes(methods, measured_curves, records),
    }


def answered(records: Iterable[Record]) -> list[Record]:
    """Select the records with a scored answer."""
    return [record for record in records if record.score is not None]


def _consistency(records: Sequence[Record], noise: Sequence[Record]) -> dict[str, Any]:
    """Compute flips between orders and between repetitions. For judges, compare the preferred responses."""
    compared = per_question.verdict if records[0].task in JUDGES else per_question.answer_of
    orders = Counter((record.question, record.seed) for record in records)
    return {
        "orders": max(orders.values()),
        "flip_rate": share(per_question.flips(answered(records), compared)),
        "noise_floor": share(per_question.repeats(records, noise, compared)),
    }


def _judge(records: Sequence[Record]) -> dict[str, Any]:
    """Compute a judge's consistency under swaps, its preference for the first response, and its accuracy.

    Accuracy is given for each position of the better response. A pair without a verdict in both orders is consistent.
    """
    consistent = {question: 1 - value for question, value in per_question.flips(records, per_question.verdict).items()}
    by_position = {
        name: share(means((record for record in records if record.gold_position == position), SCORE))
        for position, name in enumerate(("accuracy_preferred_first", "accuracy_preferred_second"))
    }
    undecided = sum(per_question.verdict(record) == "neither" for record in records)
    return {
        "swap_consistency": share(consistent),
        "prefers_first": share(per_question.prefers_first(records)),
        **by_position,
        "undecided": undecided / len(records),
    }


def _groups(records: Sequence[Record]) -> dict[str, Any]:
    groups = grouped(records, attrgetter("group"))
    if set(groups) <= {""}:
        return {}
    scores = {group: means(answers, SCORE) for group, answers in sorted(groups.items())}
    return {group: {"questions": len(by_question), "mean": share(by_question)} for group, by_question in scores.items()}


def _ran_plain(label: str, records: Sequence[Record]) -> dict[str, int]:
    """Count the answers of the plain model that ran instead of the method, by reason."""
    if label.partition("(")[0] == REFERENCE:
        return {}
    return dict(Counter(record.reason or "no reason given" for record in records if record.method_ran == REFERENCE))


def _notes(methods: Mapping[str, Mapping[str, Any]], scores: Sequence[Scores], records: Sequence[Record]) -> list[str]:
    notes = []
    few = min(len(curve.questions) for curve in scores)
    if few < FEWEST:
        notes.append(f"{few} questions are too few for intervals; at least {FEWEST} are needed.")
    if len({curve.questions for curve in scores}) > 1:
        notes.append("The methods answered different questions; differences are over the questions in common.")
    if len({curve.positions for curve in scores}) > 1:
        notes.append("The methods ran at different positions; differences are over the positions in common.")
    if REFERENCE not in methods:
        notes.append(f"{REFERENCE!r} did not run, so there are no differences from it.")
    for label, method in methods.items():
        if undecided := method.get("judge", {}).get("undecided"):
            notes.append(f"{label}: {undecided:.0%} of the answers have no verdict, and count 0.5.")
        for reason, count in method["ran_plain"].items():
            notes.append(f"{label}: {count} of {method['rows']} answers came from the plain model: {reason}")
    notes += [
        f"Passages were cut to {words} words around the gold answer, or their first {words} (shorten={words})."
        for words in sorted({record.shorten for record in records if record.shorten is not None})
    ]
    if copied := sorted({record.method for record in records if record.copied}):
        notes.append(
            f"Measured in one order of the same documents, and copied to the others: {', '.join(copied)}. "
            "The invariance of these methods is assumed here, not measured."
        )
    return notes


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
