"""The aggregates of a bench: one entry for each model, task and number of documents, plain data for JSON.

Figures with an interval are lists ``[estimate, low, high]``; ``low`` and ``high`` are ``None`` where there are too few
questions for one, and a note says so.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, TypeAlias

from ragbias.evaluation.data.records import Record
from ragbias.evaluation.data.run_folder import cost_key
from ragbias.evaluation.measures import bootstrap as statistics
from ragbias.evaluation.measures import per_question
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval, Scores

REFERENCE = "none"
JUDGE = "judge"
REFERENCE_LINES = {0: "closed_book", 1: "oracle"}  # by the number of documents

Setting: TypeAlias = tuple[str, str, int]  # model, task, number of documents
Estimate: TypeAlias = list[float | None]


def summarise(
    rows: Sequence[Record], cost: Mapping[str, Mapping[str, Any]] | None = None, noise: Sequence[Record] = ()
) -> dict[str, Any]:
    """All aggregates of a run.

    Args:
        rows: one for each answer.
        cost: figures of each method by ``folder.cost_key`` and method; taken over as they are.
        noise: second answers in the same order, for the noise floor.

    Returns:
        ``results``: one entry for each model, task and number of documents, with ``methods`` by label. Cases without
        documents, and with the gold document alone, are ``reference_lines`` of the same task with more documents
        (``closed_book`` and ``oracle``) where there is one, and results of their own where not. Positions are counted
        from 0, as in the rows. ``kendall_tau`` is how much the orders agree in which the model saw the same documents:
        with ``none`` the orders given, with methods that reorder those that they make; ``None`` for other methods.
    """
    settings = _by_setting(rows)
    repeated = _by_setting(noise)
    results = []
    for (model, task, documents), own in settings.items():
        most = max(other for other_model, other_task, other in settings if (other_model, other_task) == (model, task))
        if documents in REFERENCE_LINES and most > 1:
            continue
        lines = {
            name: _line(settings[model, task, count])
            for count, name in REFERENCE_LINES.items()
            if (model, task, count) in settings and count < documents
        }
        costs = (cost or {}).get(cost_key(model, task, documents), {})
        again = repeated.get((model, task, documents), [])
        results.append(
            {
                "model": model,
                "task": task,
                "documents": documents,
                "reference_lines": lines,
                **_methods(own, again, costs),
            }
        )
    return {"resamples": statistics.RESAMPLES, "interval_percent": statistics.LEVEL, "results": results}


def _by_setting(rows: Iterable[Record]) -> dict[Setting, list[Record]]:
    found: dict[Setting, list[Record]] = defaultdict(list)
    for row in rows:
        found[row.model, row.task, row.documents].append(row)
    return dict(sorted(found.items()))


def by_method(rows: Iterable[Record]) -> dict[str, list[Record]]:
    """Rows by the method's label, in the order in which they come."""
    found: dict[str, list[Record]] = defaultdict(list)
    for row in rows:
        found[row.method].append(row)
    return dict(found)


def _methods(rows: Sequence[Record], noise: Sequence[Record], costs: Mapping[str, Any]) -> dict[str, Any]:
    """The methods of one setting, and what a reader must know about them."""
    parts, again = by_method(rows), by_method(noise)
    scores = {label: Scores.of(own) for label, own in parts.items()}
    methods = {}
    for label, own in parts.items():
        methods[label] = {
            **_accuracy(own, scores[label]),
            "difference": _difference(label, scores),
            **_consistency(own, again.get(label, [])),
            "kendall_tau": _share(per_question.order_agreement(own)),
            "prompt_tokens": fmean(row.prompt_tokens for row in own),
            "completion_tokens": fmean(row.completion_tokens for row in own),
            "seconds": median(row.seconds for row in own),
            "ran_plain": _ran_plain(label, own),
            "groups": _groups(own),
            **({"judge": _judge(own)} if own[0].task == JUDGE else {}),
            **({"cost": dict(costs[label])} if label in costs else {}),
        }
    return {"positions": _positions(scores.values()), "methods": methods, "notes": _notes(methods, scores)}


def _positions(scores: Iterable[Scores]) -> list[int]:
    return sorted({position for each in scores for position in each.positions if position >= 0})


def _accuracy(rows: Sequence[Record], scores: Scores) -> dict[str, Any]:
    """Accuracy by position and what sums it up; worst, best and gap only where there are several positions."""
    figures = _curve(scores)
    several = len(scores.positions) > 1
    return {
        "questions": len(scores.questions),
        "rows": len(rows),
        "accuracy_by_position": {
            str(position): figure
            for position, figure in zip(scores.positions, figures["by_position"], strict=True)
            if position >= 0
        },
        "mean": figures["mean"][0],
        **{name: figures[name][0] if several else None for name in ("worst", "best", "gap")},
        "gap_by_chance": statistics.gap_by_chance(scores) if several else None,
    }


def _curve(scores: Scores) -> dict[str, list[Estimate]]:
    if len(scores.questions) >= FEWEST:
        return {name: [_estimate(each) for each in found] for name, found in statistics.curve(scores).items()}
    point = statistics.point(scores.values)
    alone = {name: [_alone(getattr(point, name)[0])] for name in ("mean", "worst", "best", "gap")}
    return {"by_position": [_alone(value) for value in point.by_position[0]], **alone}


def _difference(label: str, scores: Mapping[str, Scores]) -> dict[str, Estimate] | None:
    """To ``none``, on the questions and positions that both have; ``None`` where there is nothing to compare."""
    if label == REFERENCE or REFERENCE not in scores:
        return None
    own, reference = scores[label].shared(scores[REFERENCE])
    if not own.size:
        return None
    if len(own) >= FEWEST:
        found = statistics.differences(scores[label], scores[REFERENCE])
        return {name: _estimate(interval) for name, interval in found.items()}
    first, second = statistics.point(own), statistics.point(reference)
    return {name: _alone((getattr(first, name) - getattr(second, name))[0]) for name in ("mean", "worst", "gap")}


def _consistency(rows: Sequence[Record], noise: Sequence[Record]) -> dict[str, Any]:
    """Flips over the orders, and between two answers in the same order; a judge's is the answer that it prefers."""
    says = per_question.verdict if rows[0].task == JUDGE else per_question.spoken
    orders = Counter((row.question, row.seed) for row in rows)
    return {
        "orders": max(orders.values()),
        "flip_rate": _share(per_question.flips(rows, says)),
        "noise_floor": _share(per_question.repeats(rows, noise, says)),
    }


def _judge(rows: Sequence[Record]) -> dict[str, Any]:
    """Swap consistency, share of verdicts for the answer shown first, accuracy with the better answer in each place."""
    consistent = {question: 1 - value for question, value in per_question.flips(rows, per_question.verdict).items()}
    places = {
        name: _share(_mean_scores(row for row in rows if row.gold_position == place))
        for place, name in enumerate(("accuracy_preferred_first", "accuracy_preferred_second"))
    }
    undecided = sum(per_question.verdict(row) == "neither" for row in rows)
    return {
        "swap_consistency": _share(consistent),
        "prefers_first": _share(per_question.prefers_first(rows)),
        **places,
        "undecided": undecided / len(rows),
    }


def _groups(rows: Sequence[Record]) -> dict[str, Any]:
    found: dict[str, list[Record]] = defaultdict(list)
    for row in rows:
        found[row.group].append(row)
    if set(found) == {""}:
        return {}
    means = {group: _mean_scores(own) for group, own in sorted(found.items())}
    return {group: {"questions": len(each), "mean": _share(each)} for group, each in means.items()}


def _mean_scores(rows: Iterable[Record]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        found[row.question].append(row.score)
    return {question: fmean(scores) for question, scores in found.items()}


def _line(rows: Sequence[Record]) -> Estimate | None:
    """Accuracy of the plain model, or, where it was not run, of the first method."""
    parts = by_method(rows)
    return _share(_mean_scores(parts.get(REFERENCE) or next(iter(parts.values()))))


def _ran_plain(label: str, rows: Sequence[Record]) -> dict[str, int]:
    """How many rows ran without the method although it was asked for, by reason."""
    if label.partition("(")[0] == REFERENCE:
        return {}
    return dict(Counter(row.reason or "no reason given" for row in rows if row.method_ran == REFERENCE))


def _notes(methods: Mapping[str, Mapping[str, Any]], scores: Mapping[str, Scores]) -> list[str]:
    notes = []
    few = min(len(each.questions) for each in scores.values())
    if few < FEWEST:
        notes.append(f"{few} questions are too few for intervals; at least {FEWEST} are needed.")
    if len({each.questions for each in scores.values()}) > 1:
        notes.append("The methods did not answer the same questions; differences are over those in common.")
    if len({each.positions for each in scores.values()}) > 1:
        notes.append("The methods were not asked at the same positions; differences are over those in common.")
    if REFERENCE not in methods:
        notes.append(f"{REFERENCE!r} did not run, so there are no differences to it.")
    for label, method in methods.items():
        for reason, count in method["ran_plain"].items():
            notes.append(f"{label}: {count} of {method['rows']} answers came from the plain model: {reason}")
    return notes


def _share(values: Mapping[str, float]) -> Estimate | None:
    """A mean over questions with its interval; ``None`` where there are no values."""
    if not values:
        return None
    return _estimate(statistics.share(values)) if len(values) >= FEWEST else _alone(fmean(values.values()))


def _estimate(interval: Interval) -> Estimate:
    return [value if math.isfinite(value) else None for value in interval.as_list()]


def _alone(estimate: float) -> Estimate:
    value = float(estimate)
    return [value if math.isfinite(value) else None, None, None]
