"""The aggregates of a bench: one entry for each model, task and number of documents, plain data for JSON.

Figures with an interval are lists ``[estimate, low, high]``; ``low`` and ``high`` are ``None`` where there are too few
questions for one, and a note says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean, median
from typing import Any, TypeAlias

from ragbias.evaluation.data.records import Record
from ragbias.evaluation.data.run_folder import cost_key
from ragbias.evaluation.measures import bootstrap, per_question
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval, Scores
from ragbias.evaluation.measures.per_question import grouped, means
from ragbias.evaluation.measures.reward_bench import SUBSETS, question_weights

REFERENCE = "none"
JUDGES = ("judge", "llmbar")  # tasks whose answers prefer one of two responses
LOST = {"front": "their beginning was cut off", "middle": "their middle was cut out"}  # by ``Record.cut``
REFERENCE_LINES = {0: "closed_book", 1: "oracle"}  # by the number of documents

SCORE = attrgetter("score")

Setting: TypeAlias = tuple[str, str, int]  # model, task, number of documents
Estimate: TypeAlias = list[float | None]


def summarise(
    records: Sequence[Record], cost: Mapping[str, Mapping[str, Any]] | None = None, noise: Sequence[Record] = ()
) -> dict[str, Any]:
    """All aggregates of a run.

    Args:
        records: one for each answer.
        cost: figures of each method by ``run_folder.cost_key`` and label; taken over unchanged.
        noise: second answers in the same order, for the noise floor.

    Returns:
        ``results``: one entry for each model, task and number of documents, with ``methods`` by label. Cases without
        documents, and with the gold document alone, are ``reference_lines`` of the same task with more documents
        (``closed_book`` and ``oracle``) where there is one, and results of their own where not. Positions are counted
        from 0, as in the records. ``kendall_tau`` is how much the orders agree in which the model saw the same
        documents: with ``none`` the orders given, with methods that reorder those that they make; ``None`` for other
        methods.
    """
    settings = dict(sorted(grouped(records, setting_of).items()))
    repeated = grouped(noise, setting_of)
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
    return {"resamples": bootstrap.RESAMPLES, "interval_percent": bootstrap.LEVEL, "results": results}


def setting_of(record: Record) -> Setting:
    return record.model, record.task, record.documents


def _methods(records: Sequence[Record], noise: Sequence[Record], costs: Mapping[str, Any]) -> dict[str, Any]:
    """The methods of one setting, and what a reader must know about them."""
    parts, again = grouped(records, attrgetter("method")), grouped(noise, attrgetter("method"))
    scores = {label: Scores.of(own) for label, own in parts.items()}
    methods = {}
    for label, own in parts.items():
        methods[label] = {
            **_accuracy(own, scores[label]),
            "difference": _difference(label, scores),
            **_consistency(own, again.get(label, [])),
            "kendall_tau": _share(per_question.order_agreement(own)),
            "prompt_tokens": fmean(each.prompt_tokens for each in own),
            "completion_tokens": fmean(each.completion_tokens for each in own),
            "seconds": median(each.seconds for each in own),
            "ran_plain": _ran_plain(label, own),
            "cut": dict(Counter(each.cut for each in own if each.cut)),
            "groups": _groups(own),
            **({"judge": _judge(own)} if own[0].task in JUDGES else {}),
            **({"cost": dict(costs[label])} if label in costs else {}),
        }
    return {"positions": _positions(scores.values()), "methods": methods, "notes": _notes(methods, scores)}


def _positions(scores: Iterable[Scores]) -> list[int]:
    return sorted({position for each in scores for position in each.positions if position >= 0})


def _accuracy(records: Sequence[Record], scores: Scores) -> dict[str, Any]:
    """Accuracy by position and what sums it up; worst, best and gap only where there are several positions."""
    figures = _curve(scores)
    several = len(scores.positions) > 1
    return {
        "questions": len(scores.questions),
        "rows": len(records),
        "accuracy_by_position": {
            str(position): figure
            for position, figure in zip(scores.positions, figures["by_position"], strict=True)
            if position >= 0
        },
        "mean": figures["mean"][0],
        **{name: figures[name][0] if several else None for name in ("worst", "best", "gap")},
        "gap_by_chance": bootstrap.gap_by_chance(scores) if several else None,
    }


def _curve(scores: Scores) -> dict[str, list[Estimate]]:
    if len(scores.questions) >= FEWEST:
        return {name: [_estimate(each) for each in found] for name, found in bootstrap.curve(scores).items()}
    point = bootstrap.point(scores.values)
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
        found = bootstrap.differences(scores[label], scores[REFERENCE])
        return {name: _estimate(interval) for name, interval in found.items()}
    first, second = bootstrap.point(own), bootstrap.point(reference)
    return {name: _alone((getattr(first, name) - getattr(second, name))[0]) for name in ("mean", "worst", "gap")}


def _consistency(records: Sequence[Record], noise: Sequence[Record]) -> dict[str, Any]:
    """Flips over the orders, and between two answers in the same order; a judge's is the answer that it prefers."""
    says = per_question.verdict if records[0].task in JUDGES else per_question.spoken
    orders = Counter((each.question, each.seed) for each in records)
    return {
        "orders": max(orders.values()),
        "flip_rate": _share(per_question.flips(records, says)),
        "noise_floor": _share(per_question.repeats(records, noise, says)),
    }


def _judge(records: Sequence[Record]) -> dict[str, Any]:
    """Swap consistency, share of verdicts for the answer shown first, accuracy with the better answer first, second.

    Pairs without any verdict are neither consistent nor not. Accuracy by section of RewardBench, if they are of one.
    """
    decided = {each.question for each in records if per_question.verdict(each) != "neither"}
    flips = per_question.flips((each for each in records if each.question in decided), per_question.verdict)
    consistent = {question: 1 - value for question, value in flips.items()}
    by_position = {
        name: _share(means((each for each in records if each.gold_position == position), SCORE))
        for position, name in enumerate(("accuracy_preferred_first", "accuracy_preferred_second"))
    }
    undecided = sum(per_question.verdict(each) == "neither" for each in records)
    return {
        "swap_consistency": _share(consistent),
        "prefers_first": _share(per_question.prefers_first(records)),
        **by_position,
        "undecided": undecided / len(records),
        "sections": _sections(records),
    }


def _sections(records: Sequence[Record]) -> dict[str, Estimate]:
    values, found = means(records, SCORE), {}
    for section, weights in question_weights({each.question: each.group for each in records}).items():
        own = {question: values[question] for question in weights}
        if len(own) >= FEWEST:
            found[section] = _estimate(bootstrap.weighted_share(own, weights))
        else:
            found[section] = _alone(fmean(own.values(), [weights[question] for question in own]))
    return found


def _groups(records: Sequence[Record]) -> dict[str, Any]:
    groups = grouped(records, attrgetter("group"))
    if set(groups) == {""}:
        return {}
    scores = {group: means(own, SCORE) for group, own in sorted(groups.items())}
    return {group: {"questions": len(each), "mean": _share(each)} for group, each in scores.items()}


def _line(records: Sequence[Record]) -> Estimate | None:
    """Accuracy of the plain model, or, where it was not run, of the first method."""
    parts = grouped(records, attrgetter("method"))
    return _share(means(parts.get(REFERENCE) or next(iter(parts.values())), SCORE))


def _ran_plain(label: str, records: Sequence[Record]) -> dict[str, int]:
    """How many answers were given without the method although it was asked for, by reason."""
    if label.partition("(")[0] == REFERENCE:
        return {}
    return dict(Counter(each.reason or "no reason given" for each in records if each.method_ran == REFERENCE))


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
    asked = {group for method in methods.values() for group in method["groups"]}
    if any(method.get("judge", {}).get("sections") for method in methods.values()):
        notes.append(f"Sections are over the {len(asked & SUBSETS)} of RewardBench's {len(SUBSETS)} subsets asked.")
        if others := sorted(asked - SUBSETS):
            notes.append(f"No section of RewardBench has {', '.join(map(repr, others))}.")
    for label, method in methods.items():
        if undecided := method.get("judge", {}).get("undecided"):
            notes.append(f"{label}: {undecided:.0%} of the answers have no verdict, and count 0.5.")
        for lost, count in method["cut"].items():
            notes.append(f"{label}: {count} of {method['rows']} prompts were too long for the window; {LOST[lost]}.")
        for reason, count in method["ran_plain"].items():
            notes.append(f"{label}: {count} of {method['rows']} answers came from the plain model: {reason}")
    return notes


def _share(values: Mapping[str, float]) -> Estimate | None:
    """A mean over questions with its interval; ``None`` where there are no values."""
    if not values:
        return None
    return _estimate(bootstrap.share(values)) if len(values) >= FEWEST else _alone(fmean(values.values()))


def _estimate(interval: Interval) -> Estimate:
    return [value if math.isfinite(value) else None for value in interval.as_list()]


def _alone(estimate: float) -> Estimate:
    value = float(estimate)
    return [value if math.isfinite(value) else None, None, None]
