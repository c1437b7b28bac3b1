"""Compute values per question: flips, changes in repetitions, a judge's preference, agreement of orders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from statistics import fmean
from typing import TypeVar

import numpy as np

from ragbias.errors import RunError
from ragbias.evaluation.measures.metrics import normalised
from ragbias.evaluation.runs import Record

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def grouped(records: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group records by ``key``, in order."""
    groups: dict[K, list[T]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return dict(groups)


def means(records: Iterable[Record], value: Callable[[Record], float]) -> dict[str, float]:
    """Mean of ``value`` over the records of each question."""
    return {
        question: fmean(value(record) for record in group)
        for question, group in grouped(records, attrgetter("question")).items()
    }


def answer_of(record: Record) -> str:
    """Normalise the record's answer, so that answers can be compared."""
    return normalised(record.prediction)


def verdict(record: Record) -> str:
    """Return the response that a judge prefers: ``"chosen"``, ``"rejected"``, or ``"neither"`` for a tie."""
    return "chosen" if record.score == 1 else "rejected" if record.score == 0 else "neither"


def flips(records: Iterable[Record], answer: Callable[[Record], Hashable] = answer_of) -> dict[str, float]:
    """For each question with several orders, 1 if any answers differ, else 0."""
    return _by_question(records, answer, lambda answers: len(set(answers)) > 1)


def repeats(
    records: Iterable[Record], noise: Iterable[Record], answer: Callable[[Record], Hashable] = answer_of
) -> dict[str, float]:
    """For each repeated question, the share of repeated answers (``noise``) that differ."""
    first = {record.key: answer(record) for record in records}
    return means(
        (record for record in noise if record.key in first), lambda record: answer(record) != first[record.key]
    )


def prefers_first(records: Iterable[Record]) -> dict[str, float]:
    """For each decided pair, the share of verdicts for the first response.

    The gold document is the better response. A verdict is for the first response if it is right and the gold position
    is 0, or if it is wrong and the gold position is 1.
    """
    decided = (record for record in records if verdict(record) != "neither" and record.gold_position is not None)
    return means(decided, lambda record: (verdict(record) == "chosen") == (record.gold_position == 0))


def spreads(records: Iterable[Record]) -> dict[str, float]:
    """For each question with several orders, the range of the gold answer's log-probability, in nats."""
    return _by_question(records, attrgetter("logprob"), lambda values: max(values) - min(values))


def order_agreement(records: Iterable[Record]) -> dict[str, float]:
    """For each question with several orders, the mean Kendall's tau of all pairs of orders in the model's prompts."""
    return _by_question((record for record in records if len(record.shown) > 1), attrgetter("shown"), mean_kendall_tau)


def mean_kendall_tau(orders: Sequence[Sequence[int]]) -> float:
    """Mean Kendall's tau over all pairs of orders: 1 if equal, 0 if unrelated, -1 if reversed.

    Tau is the share of document pairs with the same relative order, minus the share with the opposite relative order.
    Raises ``RunError`` unless all orders contain the same two or more documents, each once.
    """
    first = orders[0]
    if len(first) < 2 or len(set(first)) < len(first) or any(sorted(order) != sorted(first) for order in orders):
        raise RunError(f"orders {orders!r}; expected the same two or more documents in each order, each once")
    positions = np.argsort(np.asarray(orders), axis=1)
    one, other = np.triu_indices(len(first), 1)
    signs = np.sign(positions[:, one] - positions[:, other])
    taus = signs @ signs.T / len(one)
    return float(taus[np.triu_indices(len(orders), 1)].mean())


def _by_question(
    records: Iterable[Record], value: Callable[[Record], T], measure: Callable[[Sequence[T]], float]
) -> dict[str, float]:
    """Measure groups of records with the same question, seed and number of documents. Average them by question.

    Groups of one record are skipped. All records must have the same task, model and method.
    """
    measured: dict[str, list[float]] = defaultdict(list)
    for (question, _, _), group in grouped(records, attrgetter("question", "documents", "seed")).items():
        if len(group) > 1:
            measured[question].append(measure([value(record) for record in group]))
    return {question: float(np.mean(values)) for question, values in measured.items()}
