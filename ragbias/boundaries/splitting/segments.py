"""From the spans of the documents to the parts of a prompt, so that the set of segments is the same in every order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from ragbias.boundaries.spans import Looseness, Span, looseness, stripped
from ragbias.boundaries.splitting.headers_and_separators import OWN_SPACE, split_in_one_reading
from ragbias.errors import AmbiguousSegmentsError


class Segments(NamedTuple):
    """The parts of a prompt, in its order."""

    prefix: str
    documents: tuple[str, ...]
    suffix: str


Number = tuple[int, int, str]  # the document's index, the position in the text, the number


def segments(text: str, spans: Sequence[Span], numbers: Sequence[Number] = ()) -> Segments:
    """Cut a prompt at its documents, each with its header, its footer and one separator.

    Where documents differ in their outer white space (``LooseSpan``), there are two readings of the white space around
    them: each is printed in full, or stripped. The true one fits in every order, the other one in some. So each reading
    that fits is written in a normal form, in which a document's own white space counts for nothing, and all of them
    have to be the same.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters; ascending, apart.
        numbers: to be put back into the segments they were taken from.

    Raises:
        AmbiguousSegmentsError: no reading fits, or several do and differ.
    """
    if not spans:
        return Segments(text, (), "")
    loose = looseness(spans)
    if not any(loose):
        return _cut(text, spans, numbers)
    if numbers:
        raise AmbiguousSegmentsError(
            "the documents are numbered, and some begin or end with white space of their own; strip the documents "
            "before they are printed, or make the model with strip_numbering=True"
        )
    bare = [stripped(text, span) for span in spans]
    try:
        in_full = _normal(text, spans, loose)
    except AmbiguousSegmentsError:
        return _normal(text, bare, loose)
    try:
        in_part = _normal(text, bare, loose)
    except AmbiguousSegmentsError:
        return in_full
    if in_full != in_part:
        raise AmbiguousSegmentsError(OWN_SPACE)
    return in_full


def _cut(text: str, spans: Sequence[Span], numbers: Sequence[Number]) -> Segments:
    """The parts as the prompt has them."""
    gaps = split_in_one_reading(text, spans)
    separator = gaps.separator
    bodies = []
    for index, (header, (begin, end)) in enumerate(zip(gaps.headers, spans, strict=True)):
        own = [(position, number) for document, position, number in numbers if document == index]
        bodies.append(_with_numbers(text, begin - len(header), end + len(gaps.footer), own))
    prefix, suffix = text[: spans[0][0] - len(gaps.headers[0])], text[spans[-1][1] + len(gaps.footer) :]
    return _separated(prefix, bodies, suffix, separator, gaps.closed)


def _separated(prefix: str, bodies: Sequence[str], suffix: str, separator: str, closed: bool) -> Segments:
    """The parts, with the separator after each document if it follows the last one too, else before each."""
    if closed:
        return Segments(prefix, tuple(body + separator for body in bodies), suffix.removeprefix(separator))
    return Segments(prefix.removesuffix(separator), tuple(separator + body for body in bodies), suffix)


def _normal(text: str, spans: Sequence[Span], loose: Looseness) -> Segments:
    """The parts, without the documents' outer white space on the sides on which they differ, and with as much of it
    beside them as depends on nothing but whether a line breaks there. Between a text and its header or footer it stays.
    """
    gaps = split_in_one_reading(text, spans)
    headers, footer, separator = gaps.headers, gaps.footer, gaps.separator
    prefix, suffix = text[: spans[0][0] - len(headers[0])], text[spans[-1][1] + len(footer) :]
    texts = [text[begin:end] for begin, end in spans]
    if len({bool(header) for header in headers}) > 1 or not (separator or any(headers) or footer):
        raise AmbiguousSegmentsError(
            "nothing but white space of some documents' own separates them; join them with a separator"
        )
    if loose.left and not headers[0]:
        texts = [each.lstrip() for each in texts]
        separator = _right_normal(separator)
        prefix = (prefix.rstrip() + separator[len(separator.rstrip()) :]) if prefix.strip() else ""
    if loose.right and not footer:
        texts = [each.rstrip() for each in texts]
        separator = _left_normal(separator)
        suffix = separator[: len(separator) - len(separator.lstrip())] + suffix.lstrip()
    bodies = [header + body + footer for header, body in zip(headers, texts, strict=True)]
    return _separated(prefix, bodies, suffix, separator, bool(separator) and suffix.startswith(separator))


def _with_numbers(text: str, begin: int, end: int, numbers: Sequence[tuple[int, str]]) -> str:
    """``text[begin:end]`` with each number at its position."""
    if any(not begin <= position <= end for position, _ in numbers):
        raise AmbiguousSegmentsError("the documents' numbers are apart from them, so they cannot go with them")
    edges = [begin, *(position for position, _ in numbers), end]
    pieces = [text[left:right] for left, right in itertools.pairwise(edges)]
    return "".join(
        piece + number for piece, number in zip(pieces, [*(number for _, number in numbers), ""], strict=True)
    )


def _left_normal(text: str) -> str:
    rest = text.lstrip()
    return _normal_space(text[: len(text) - len(rest)]) + rest


def _right_normal(text: str) -> str:
    rest = text.rstrip()
    return rest + _normal_space(text[len(rest) :])


def _normal_space(space: str) -> str:
    return "\n\n" if len(space.splitlines()) > 1 or space.endswith(("\n", "\r")) else " " * bool(space)
