"""Spans of characters, ``(begin, end)`` with ``end`` exclusive; groups of documents, and which of them counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias, TypeVar

Span: TypeAlias = tuple[int, int]
Item = TypeVar("Item")


class Looseness(NamedTuple):
    """On which sides documents differ in the white space of their own, so that it cannot be told from separators."""

    left: bool = False
    right: bool = False


class LooseSpan(tuple[int, int]):
    """A span that knows that its document and the others differ in their outer white space. In all else a tuple."""

    looseness: Looseness

    def __new__(cls, span: Span, looseness: Looseness) -> LooseSpan:
        """``span``, with what is known of its document."""
        loose = super().__new__(cls, span)
        loose.looseness = looseness
        return loose


def looseness(spans: Iterable[Span]) -> Looseness:
    """On which sides the documents of the spans differ in their outer white space; of plain tuples, on none."""
    known = [span.looseness for span in spans if isinstance(span, LooseSpan)]
    return Looseness(any(each.left for each in known), any(each.right for each in known))


def loosened(spans: Iterable[Span], looseness: Looseness) -> list[Span]:
    """The spans with this knowledge."""
    return [LooseSpan(span, looseness) if any(looseness) else span for span in spans]


def stripped(text: str, span: Span) -> Span:
    """The span without the white space at its ends."""
    part = text[slice(*span)]
    return span[1] - len(part.lstrip()), span[0] + len(part.rstrip())


def split_at(items: Sequence[Item], borders: Iterable[int]) -> list[list[Item]]:
    """The items in groups, a new one of which begins at each of these indices; none is empty."""
    edges = [0, *sorted(borders), len(items)]
    return [list(items[begin:end]) for begin, end in pairwise(edges) if begin < end]


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
