"""Document orders for a question."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ragbias.errors import RunError

T = TypeVar("T")


def evenly_spread(documents: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spread positions from 0 to ``documents - 1``. One position is the middle."""
    if count == 1:
        return [documents // 2]
    return sorted({round(index * (documents - 1) / (count - 1)) for index in range(count)})


def orders_of(things: Sequence[T], count: int, key: str) -> list[list[T]]:
    """Return ``count`` orders: the input order, then shuffles seeded by ``key``. Raise ``RunError`` if fewer exist."""
    if count > 1 and count > math.factorial(min(len(things), 20)):
        raise RunError(
            f"orders={count}, but {len(things)} documents that can move have {math.factorial(len(things))} orders; "
            "use fewer, or give more documents"
        )
    rng = random.Random(f"orders {key}")
    orders = [list(range(len(things)))]
    while len(orders) < count:
        order = rng.sample(orders[0], len(things))
        if order not in orders:
            orders.append(order)
    return [[things[index] for index in order] for order in orders]


def gold_orders(
    gold: T, others: Sequence[T], positions: Sequence[int], orders: int, key: str
) -> Iterator[tuple[list[T], int, int]]:
    """Yield ``(documents, gold position, index of the order)`` for each order and position, counted from 0.

    The other documents have the same order for every gold position. ``key`` seeds the shuffles.
    """
    for position in positions:
        if position > len(others):
            count = len(others) + 1
            raise RunError(f"position {position} among {count} documents; positions count from 0 to {count - 1}")
    for order, shuffled in enumerate(orders_of(others, orders, key)):
        for position in positions:
            yield [*shuffled[:position], gold, *shuffled[position:]], position, order


def ranking(contents: Sequence[str], order: Iterable[int]) -> tuple[int, ...]:
    """Return the alphabetical rank of each document in ``order``, which lists indices into ``contents``.

    Ranks do not depend on the order of ``contents``. Equal documents have ascending ranks.
    """
    ranks = {text: itertools.count(rank) for rank, text in reversed(list(enumerate(sorted(contents))))}
    return tuple(next(ranks[contents[index]]) for index in order)
