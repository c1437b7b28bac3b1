"""Spans of characters, ``(begin, end)`` with ``end`` exclusive, and which of several groups of documents counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

Span: TypeAlias = tuple[int, int]
Item = TypeVar("Item")


def largest_group(groups: Iterable[Sequence[Item]], span: Callable[[Item], Span]) -> Sequence[Item]:
    """The group of most documents, then of most text, then the last one; empty if there is none.

    Args:
        groups: of documents in ascending order; a document is anything that has a span.
        span: gives a document's ``(begin, end)``.
    """

    def rank(group: Sequence[Item]) -> tuple[int, int, int]:
        return len(group), n_characters(map(span, group)), span(group[0])[0]

    return max((group for group in groups if group), key=rank, default=())


def n_characters(spans: Iterable[Span]) -> int:
    """Number of characters that the spans cover."""
    return sum(end - begin for begin, end in spans)
