"""From the spans of the documents to the parts of a prompt, so that the set of segments is the same in every order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from ragbias.boundaries.spans import Margins, Span, margins_of, stripped, with_margins
from ragbias.boundaries.splitting.headers_and_separators import OWN_SPACE, surroundings
from ragbias.boundaries.splitting.numbering import Numbering
from ragbias.errors import AmbiguousSegmentsError

Number = tuple[int, int, str]  # the document's index, the position in the text, the number


class Segments(NamedTuple):
    """The parts of a prompt, in its order.

    ``lead`` is the separator that begins the first document here, but not in the flat prompt.
    """

    prefix: str
    documents: tuple[str, ...]
    suffix: str
    lead: str = ""


def split(text: str, spans: Sequence[Span], numbering: Numbering, strip_numbering: bool) -> Segments:
    """Cut a prompt at its documents, each with its header, its footer and one separator, with or without its number.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters; ascending, apart, at least one.
        numbering: of the documents.
        strip_numbering: take the numbers out.

    Raises:
        AmbiguousSegmentsError: no reading of the text around the documents fits, or several do and differ.
    """
    if not strip_numbering:
        try:
            return _segments(text, spans)
        except AmbiguousSegmentsError:  # numbers may hide what is the same for all documents: <doc1>, <doc2>
            if not numbering.cuts:
                raise
    bare, moved = numbering.stripped(text, spans)
    return _segments(bare, with_margins(moved, margins_of(spans)), () if strip_numbering else numbering.parts(text))


def _segments(text: str, spans: Sequence[Span], numbers: Sequence[Number] = ()) -> Segments:
    """The parts of the prompt, with the numbers put back into the segments that they were taken from.

    Where documents differ in their outer white space (``MarginSpan``), each may be printed in full, or stripped. The
    true reading fits in every order, the other one in some. So each reading that fits is written in a normal form, in
    which a document's own white space does not count, and all of them have to be the same.
    """
    margins = margins_of(spans)
    if not any(margins):
        return _cut(text, spans, numbers)
    if numbers:
        raise AmbiguousSegmentsError(
            "the documents are numbered, and some begin or end with white space; strip the documents before they are "
            "printed, or use strip_numbering=True"
        )
    bare = [stripped(text, span) for span in spans]
    try:
        in_full = _normal(text, spans, margins)
    except AmbiguousSegmentsError:
        return _normal(text, bare, margins)
    try:
        in_part = _normal(text, bare, margins)
    except AmbiguousSegmentsError:
        return in_full
    if in_full != in_part:
        raise AmbiguousSegmentsError(OWN_SPACE)
    return in_full


def _cut(text: str, spans: Sequence[Span], numbers: Sequence[Number]) -> Segments:
    """The parts as the prompt has them."""
    around = surroundings(text, spans)
    bodies = []
    for index, (header, (begin, end)) in enumerate(zip(around.headers, spans, strict=True)):
        own = [(position, number) for document, position, number in numbers if document == index]
        bodies.append(_with_numbers(text, begin - len(header), end + len(around.footer), own))
    prefix, suffix = text[: spans[0][0] - len(around.headers[0])], text[spans[-1][1] + len(around.footer) :]
    return _separated(prefix, bodies, suffix, around.separator, around.closed)


def _separated(prefix: str, bodies: Sequence[str], suffix: str, separator: str, closed: bool) -> Segments:
    """The parts, with the separator after each document if it follows the last one too, else before each."""
    if closed:
        return Segments(prefix, tuple(body + separator for body in bodies), suffix.removeprefix(separator))
    lead = "" if prefix.endswith(separator) else separator
    return Segments(prefix.removesuffix(separator), tuple(separator + body for body in bodies), suffix, lead)


def _normal(text: str, spans: Sequence[Span], margins: Margins) -> Segments:
    """The parts, without the documents' outer white space on the sides on which they differ, and with as much of it
    beside them as depends only on whether a line breaks there. Between a text and its header or footer it stays.
    """
    around = surroundings(text, spans)
    headers, footer, separator = around.headers, around.footer, around.separator
    prefix, suffix = text[: spans[0][0] - len(headers[0])], text[spans[-1][1] + len(footer) :]
    texts = [text[begin:end] for begin, end in spans]
    if len({bool(header) for header in headers}) > 1 or not (separator or any(headers) or footer):
        raise AmbiguousSegmentsError("only white space of the documents separates them; join them with a separator")
    if margins.left and not headers[0]:
        texts = [each.lstrip() for each in texts]
        rest = separator.rstrip()
        space = _normal_space(separator[len(rest) :])
        separator, prefix = rest + space, (prefix.rstrip() + space) if prefix.strip() else ""
    if margins.right and not footer:
        texts = [each.rstrip() for each in texts]
        rest = separator.lstrip()
        space = _normal_space(separator[: len(separator) - len(rest)])
        separator, suffix = space + rest, space + suffix.lstrip()
    bodies = [header + body + footer for header, body in zip(headers, texts, strict=True)]
    return _separated(prefix, bodies, suffix, separator, bool(separator) and suffix.startswith(separator))


def _with_numbers(text: str, begin: int, end: int, numbers: Sequence[tuple[int, str]]) -> str:
    """``text[begin:end]`` with each number at its position."""
    if any(not begin <= position <= end for position, _ in numbers):
        raise AmbiguousSegmentsError(
            "the documents' numbers are apart from the texts; print each number beside its document"
        )
    edges = [begin, *(position for position, _ in numbers), end]
    pieces = [text[left:right] for left, right in itertools.pairwise(edges)]
    return "".join(itertools.chain(*zip(pieces, [*(number for _, number in numbers), ""], strict=True)))


def _normal_space(space: str) -> str:
    return "\n\n" if len(space.splitlines()) > 1 or space.endswith(("\n", "\r")) else " " * bool(space)
