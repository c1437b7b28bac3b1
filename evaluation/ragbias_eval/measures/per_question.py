"""Compute values by question: flips, a judge's preference for the first response, agreement of orders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from statistics import fmean
from typing import TypeVar

import numpy as np

from ragbias.errors import RunError
from ragbias_eval.metrics import normalise
from ragbias_eval.runs import Record

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def group_by(records: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group records by ``key``. Keep their order."""
    groups: dict[K, list[T]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return dict(groups)


def mean_by_question(records: Iterable[Record], value: Callable[[Record], float]) -> dict[str, float]:
    """Average ``value`` over the records of each question."""
    return {
        question: fmean(value(record) for record in group)
        for question, group in group_by(records, attrgetter("question")).items()
    }


def normalised_answer(record: Record) -> str:
    """Return the record's answer, normalised for comparison."""
    return normalise(record.prediction)


def preferred_response(record: Record) -> str:
    """Return the response that a judge prefers: ``"chosen"``, ``"rejected"``, or ``"neither"`` for a tie."""
    if record.score == 1:
        return "chosen"
    return "rejected" if record.score == 0 else "neither"


def order_flips(records: Iterable[Record], answer: Callable[[Record], Hashable]) -> dict[str, float]:
    """Return, for each question with several orders, 1 if any two answers differ, else 0."""
    return compare_orders(records, answer, lambda answers: len(set(answers)) > 1)


def repeat_flips(
    records: Iterable[Record], noise: Iterable[Record], answer: Callable[[Record], Hashable]
) -> dict[str, float]:
    """Return, for each question in ``noise``, the share of repeated answers that differ from those in ``records``."""
    first = {record.key: answer(record) for record in records}
    return mean_by_question(
        (record for record in noise if record.key in first), lambda record: answer(record) != first[record.key]
    )


def mean_kendall_tau(orders: Sequence[Sequence[int]]) -> float:
    """Compute the mean Kendall's tau over all pairs of orders: 1 if equal, 0 if unrelated, -1 if reversed.

    Tau is the share of document pairs with the same relative order, minus the share with the opposite relative order.
    Raise ``RunError`` if an order repeats a document, has fewer than two documents, or lacks documents of other orders.
    """
    first = orders[0]
    if len(first) < 2 or len(set(first)) < len(first) or any(sorted(order) != sorted(first) for order in orders):
        raise RunError(f"orders {orders!r}; expected the same two or more documents in each order, each once")
    positions = np.argsort(np.asarray(orders), axis=1)
    one, other = np.triu_indices(len(first), 1)
    signs = np.sign(positions[:, one] - positions[:, other])
    taus = signs @ signs.T / len(one)
    return float(taus[np.triu_indices(len(orders), 1)].mean())


def compare_orders(
    records: Iterable[Record], value: Callable[[Record], T], measure: Callable[[Sequence[T]], float]
) -> dict[str, float]:
    """Measure each group of records that differ only in the document order. Average the results by question.

    ``measure`` gets the ``value`` of each record in a group. Groups of one record are skipped. All records must have
    the same task, model and method.
    """
    measured: dict[str, list[float]] = defaultdict(list)
    for (question, _, _), group in group_by(records, attrgetter("question", "documents", "seed")).items():
        if len(group) > 1:
            measured[question].append(measure([value(record) for record in group]))
    return {question: float(np.mean(values)) for question, values in measured.items()}
