"""Summarise a bench as JSON data, with an entry for each model, task and number of documents.

Numbers with an interval are lists ``[estimate, low, high]``, or None without data. With too few questions, ``low`` and
``high`` are None, and a note explains why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean, median
from typing import Any, TypeAlias

from ragbias.data import intervals
from ragbias.data.intervals import MIN_QUESTIONS, Estimate
from ragbias_eval import ACCURACY, JUDGES, LOGPROB, REFERENCE
from ragbias_eval.measures import bootstrap
from ragbias_eval.measures.bootstrap import SHARE, Bounds, Scores
from ragbias_eval.measures.per_question import (
    compare_orders,
    group_by,
    mean_by_question,
    mean_kendall_tau,
    normalised_answer,
    order_flips,
    preferred_response,
    repeat_flips,
)
from ragbias_eval.runs import Record, cost_key

get_score = attrgetter("score")

Setting: TypeAlias = tuple[str, str, int]  # model, task, number of documents
EXTREMES = {  # differences by name: the method's field of ``Summaries``, and the plain model's field to subtract
    "worst": ("mean", "worst"),
    "best": ("mean", "best"),
    "worst_to_worst": ("worst", "worst"),
    "gap": ("gap", "gap"),
}
NATS = (-math.inf, 0.0)  # bounds of a log-probability
CURVE_FIGURES = ("worst", "best", "gap")  # figures that need several positions


def summarise_records(
    records: Sequence[Record], cost: Mapping[str, Mapping[str, Any]] | None = None, noise: Sequence[Record] = ()
) -> dict[str, Any]:
    """Summarise the answers of a bench by model, task, number of documents and method.

    Args:
        cost: measured time and memory, by ``runs.cost_key`` and label of the method. They are copied to the result.
        noise: records of answers to repeated prompts, which give the noise floor of flips.

    Returns:
        JSON data. Each entry of ``results`` has a dict ``methods``, with a summary for each method. Gold positions are
        counted from 0.
    """
    settings = dict(sorted(group_by(records, setting_of).items()))
    repeated = group_by(noise, setting_of)
    results = []
    for setting, setting_records in settings.items():
        keys = dict(zip(("model", "task", "documents"), setting, strict=True))
        costs = (cost or {}).get(cost_key(*setting), {})
        results.append({**keys, **_summarise_methods(setting_records, repeated.get(setting, []), costs)})
    return {"resamples": intervals.RESAMPLES, "interval_percent": intervals.LEVEL, "results": results}


def setting_of(record: Record) -> Setting:
    return record.model, record.task, record.documents


def _summarise_methods(records: Sequence[Record], noise: Sequence[Record], costs: Mapping[str, Any]) -> dict[str, Any]:
    parts = group_by(records, attrgetter("method"))
    again = group_by(noise, attrgetter("method"))
    scores = {label: Scores.of(answers) for label, answers in parts.items()}
    golds = {label: Scores.of(answers, "logprob") for label, answers in parts.items()}
    judges = records[0].task in JUDGES
    compared = preferred_response if judges else normalised_answer
    plain = scores.get(REFERENCE)
    methods: dict[str, dict[str, Any]] = {}
    for label, answers in parts.items():
        accuracy = curve_figures(scores[label])
        scored = scored_records(answers)
        is_plain = label.partition("(")[0] == REFERENCE
        ordered = [record for record in answers if len(record.shown) > 1]
        replaced = [record for record in answers if record.method_ran == REFERENCE and not is_plain]
        methods[label] = {
            "questions": len({record.question for record in answers}),
            "rows": len(answers),
            "accuracy_by_position": accuracy.pop("by_position"),
            **accuracy,
            "minus_plain": minus_plain(scores[label], plain, 1) if plain else None,
            "orders": max(Counter((record.question, record.seed) for record in answers).values()),
            "flip_rate": optional_share(order_flips(scored, compared)),
            "noise_floor": optional_share(repeat_flips(answers, again.get(label, []), compared)),
            "logprob": gold_figures(answers, golds[label], golds.get(REFERENCE)) if golds[label].questions else None,
            "kendall_tau": optional_share(compare_orders(ordered, attrgetter("shown"), mean_kendall_tau)),
            "prompt_tokens": fmean(record.prompt_tokens for record in answers),
            "completion_tokens": fmean(record.completion_tokens for record in answers),
            "seconds": median(record.seconds for record in answers),
            "ran_plain": Counter(record.reason or "no reason given" for record in replaced),
            "groups": _scores_by_group(scored),
        }
        if judges and scored:
            methods[label]["judge"] = _judge_figures(scored)
        if label in costs:
            methods[label]["cost"] = dict(costs[label])
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


def scored_records(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.score is not None]


def _judge_figures(records: Sequence[Record]) -> dict[str, Any]:
    """Compute a judge's consistency between both orders, and its preference for the first response.

    A pair counts as consistent if neither order has a verdict. The gold position is that of the better response.
    """
    flips = order_flips(records, preferred_response)
    decided = [record for record in records if preferred_response(record) != "neither"]
    first = mean_by_question(decided, lambda record: (record.score == 1) == (record.gold_position == 0))
    return {
        "swap_consistency": optional_share({question: 1 - flip for question, flip in flips.items()}),
        "prefers_first": optional_share(first),
        "undecided": (len(records) - len(decided)) / len(records),
    }


def _scores_by_group(records: Sequence[Record]) -> dict[str, Any]:
    groups = group_by(records, attrgetter("group"))
    if set(groups) <= {""}:
        return {}
    scores = {group: mean_by_question(answers, get_score) for group, answers in sorted(groups.items())}
    return {group: {"questions": len(means), "mean": optional_share(means)} for group, means in scores.items()}


def _notes(methods: Mapping[str, Mapping[str, Any]], scores: Sequence[Scores], records: Sequence[Record]) -> list[str]:
    notes = []
    few = min(len(curve.questions) for curve in scores)
    if few < MIN_QUESTIONS:
        notes.append(f"{few} questions are too few for intervals; at least {MIN_QUESTIONS} are needed.")
    if len({curve.questions for curve in scores}) > 1:
        notes.append("The methods answered different questions; differences cover only the questions in common.")
    if len({curve.positions for curve in scores}) > 1:
        notes.append("The methods ran at different positions; differences cover only the positions in common.")
    if REFERENCE not in methods:
        notes.append(f"{REFERENCE!r} did not run, so there are no differences from it.")
    for label, method in methods.items():
        if undecided := method.get("judge", {}).get("undecided"):
            notes.append(f"{label}: {undecided:.0%} of the answers have no verdict. They score 0.5.")
        for reason, count in method["ran_plain"].items():
            notes.append(f"{label}: {count} of {method['rows']} answers came from the plain model: {reason}")
    notes += [
        f"Passages were cut to {words} words around the gold answer. Passages without the gold answer were cut to "
        f"their first {words} words (shorten={words})."
        for words in sorted({record.shorten for record in records if record.shorten is not None})
    ]
    if copied := sorted({record.method for record in records if record.copied}):
        notes.append(
            "These methods ran with one document order, and their results were copied to the other orders: "
            f"{', '.join(copied)}. The invariance of these methods is assumed here, not measured."
        )
    return notes


def figures_of(method: Mapping[str, Any], measure: str) -> Mapping[str, Any]:
    """Return the part of a method's summary for one measure, or {} without data."""
    return method if measure == ACCURACY else method[measure] or {}


def curve_figures(scores: Scores, bounds: Bounds = SHARE) -> dict[str, Any]:
    """Compute scores by position and their mean. With several positions, add ``CURVE_FIGURES`` and the chance gap."""
    if not scores.questions:
        return {"by_position": {}, "mean": [None] * 3, **dict.fromkeys((*CURVE_FIGURES, "gap_by_chance"))}
    curve = bootstrap.compute_curve(scores, bounds=bounds)
    figures = {name: [interval.as_list() for interval in intervals] for name, intervals in curve.items()}
    several = len(scores.positions) > 1
    return {
        "by_position": _by_position(scores, figures["by_position"]),
        "mean": figures["mean"][0],
        **{name: figures[name][0] if several else None for name in CURVE_FIGURES},
        "gap_by_chance": bootstrap.estimate_chance_gap(scores) if several else None,
    }


def minus_plain(scores: Scores, plain: Scores, most: float = math.inf) -> dict[str, Any] | None:
    """Compute a method's differences from the plain model.

    The plain model's mean is subtracted from the method's mean, and from the method's score at each position. With
    several positions, the result also has the differences in ``EXTREMES``. ``most`` is the largest possible difference
    of two scores, such as 1 for accuracies. Return None if the two have no common question or position.
    """
    first, second = scores.restrict_to_common(plain)
    if not first.values.size:
        return None
    ours, theirs = bootstrap.resample(first), bootstrap.resample(second)

    def differences(of: str, subtracted: str, bounds: Bounds | None = None) -> list[Estimate]:
        once, samples = (getattr(one, of) - getattr(other, subtracted) for one, other in zip(ours, theirs, strict=True))
        return [interval.as_list() for interval in bootstrap.compute_intervals(once, samples, bounds)]

    several = len(first.positions) > 1
    return {
        "mean": differences("mean", "mean")[0],
        **{name: differences(*fields, (-most, most))[0] if several else None for name, fields in EXTREMES.items()},
        "by_position": _by_position(first, differences("by_position", "mean")),
    }


def optional_share(values: Mapping[str, float]) -> Estimate | None:
    """Return the mean and interval of ``values`` as a list, or None without values."""
    return intervals.share(values).as_list() if values else None


def _by_position(scores: Scores, figures: Sequence[Estimate]) -> dict[str, Estimate]:
    """Make a dict of results by position. Omit the position -1, which means no gold document."""
    return {str(position): figure for position, figure in zip(scores.positions, figures, strict=True) if position >= 0}


def gold_figures(records: Sequence[Record], scores: Scores, plain: Scores | None) -> dict[str, Any]:
    """Summarise one method's log-probabilities of gold answers, and compare its next token with the plain model's."""
    measured = [record for record in records if record.logprob is not None]
    spreads = compare_orders(measured, attrgetter("logprob"), lambda values: max(values) - min(values))
    return {
        "questions": len(scores.questions),
        **curve_figures(scores, NATS),
        "minus_plain": None if plain is None else minus_plain(scores, plain),
        "spread": optional_share(spreads),  # range over the document orders
        "kl": optional_share(mean_by_question(measured, attrgetter("kl"))),
        "agreement": optional_share(mean_by_question(measured, attrgetter("agrees"))),
        "answer_tokens": sum(record.answer_tokens or 0 for record in measured) / len(measured),
    }
