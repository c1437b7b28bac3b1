"""Spans of characters, ``(begin, end)`` with ``end`` exclusive, and groups of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias, TypeVar

Span: TypeAlias = tuple[int, int]
Item = TypeVar("Item")


class Margins(NamedTuple):
    """The sides on which documents differ in their outer white space, so that separators are hard to tell apart."""

    left: bool = False
    right: bool = False


class MarginSpan(tuple[int, int]):
    """A span that knows that its document and the others differ in their outer white space. In all else a tuple."""

    margins: Margins


def margin_span(span: Span, margins: Margins) -> Span:
    """The span with this knowledge; a plain one if there is none."""
    if not any(margins):
        return span
    aware = MarginSpan(span)
    aware.margins = margins
    return aware


def margins_of(spans: Iterable[Span]) -> Margins:
    """On which sides the documents of the spans differ in their outer white space; of plain tuples, on none."""
    known = [span.margins for span in spans if isinstance(span, MarginSpan)]
    return Margins(any(each.left for each in known), any(each.right for each in known))


def with_margins(spans: Iterable[Span], margins: Margins) -> list[Span]:
    """The spans with this knowledge."""
    return [margin_span(span, margins) for span in spans]


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
