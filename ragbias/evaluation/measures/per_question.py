"""One value for each question: whether its answers flip or repeat, what a judge prefers, how much orders agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ragbias.errors import RunError
from ragbias.evaluation.data.records import Record
from ragbias.evaluation.measures.metrics import normalised

T = TypeVar("T")


def spoken(row: Record) -> str:
    """What a row says, as flips compare it."""
    return normalised(row.prediction)


def verdict(row: Record) -> str:
    """Which answer a judge's row prefers: ``"chosen"``, ``"rejected"``, or ``"neither"`` where the score is a tie's."""
    return {1.0: "chosen", 0.0: "rejected"}.get(row.score, "neither")


def flips(rows: Iterable[Record], answer: Callable[[Record], Hashable] = spoken) -> dict[str, float]:
    """For each question asked in several orders: 1 if not all answers are the same, else 0.

    Where seeds drew other documents for the same question, the mean over these sets of documents.

    Args:
        rows: of one task, model and method.
        answer: what must stay the same.
    """
    return _by_question(rows, answer, lambda answers: len(set(answers)) > 1)


def repeats(
    rows: Iterable[Record], noise: Iterable[Record], answer: Callable[[Record], Hashable] = spoken
) -> dict[str, float]:
    """For each question asked twice in the same order: the share of second answers that differ from the first.

    Its mean is the noise floor of the decoder; ``noise`` are the second answers.
    """
    first = {row.key: answer(row) for row in rows}
    changed: dict[str, list[float]] = defaultdict(list)
    for row in noise:
        if row.key in first:
            changed[row.question].append(answer(row) != first[row.key])
    return _means(changed)


def prefers_first(rows: Iterable[Record]) -> dict[str, float]:
    """For each pair that a judge decided: the share of its verdicts for the answer shown first.

    The better answer is the gold document, so a verdict is for the first one if it is right and that one stands first,
    or wrong and it stands second.
    """
    given: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if verdict(row) != "neither" and row.gold_position is not None:
            given[row.question].append((verdict(row) == "chosen") == (row.gold_position == 0))
    return _means(given)


def order_agreement(rows: Iterable[Record]) -> dict[str, float]:
    """For each question with documents shown from several given orders: how much the orders shown agree.

    It is the mean Kendall's tau over all pairs of them; where seeds drew other documents, the mean over these sets.

    Args:
        rows: of one task, model and method.

    Raises:
        RunError: as ``mean_kendall_tau``.
    """
    return _by_question((row for row in rows if len(row.shown) > 1), lambda row: row.shown, mean_kendall_tau)


def mean_kendall_tau(orders: Sequence[Sequence[int]]) -> float:
    """The mean over all pairs of orders of Kendall's tau: 1 the same, 0 unrelated, -1 reversed.

    Tau is the share of pairs of documents that stand the same way round in both orders, less the share of the others.

    Args:
        orders: two or more of the same two or more documents, each once.

    Raises:
        RunError: they are not.
    """
    first = orders[0]
    if len(first) < 2 or len(set(first)) < len(first) or any(sorted(order) != sorted(first) for order in orders):
        raise RunError(f"orders {orders!r}; expected the same two or more documents in each, each once")
    places = np.argsort(np.asarray(orders), axis=1)
    one, other = np.triu_indices(len(first), 1)
    signs = np.sign(places[:, one] - places[:, other])
    taus = signs @ signs.T / len(one)
    return float(taus[np.triu_indices(len(orders), 1)].mean())


def _by_question(
    rows: Iterable[Record], value: Callable[[Record], T], measure: Callable[[Sequence[T]], float]
) -> dict[str, float]:
    """``measure`` of the values of each set of documents that was shown several times, the mean over a question's sets.

    A set is what one seed drew for a question, of one size.
    """
    values: dict[tuple[str, int, int], list[T]] = defaultdict(list)
    for row in rows:
        values[row.question, row.documents, row.seed].append(value(row))
    measured: dict[str, list[float]] = defaultdict(list)
    for (question, _, _), each in values.items():
        if len(each) > 1:
            measured[question].append(measure(each))
    return _means(measured)


def _means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {question: float(np.mean(each)) for question, each in values.items()}
