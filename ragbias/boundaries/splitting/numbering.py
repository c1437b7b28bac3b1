"""Finding and stripping the documents' numbers: they tell the order in the text itself, where no method can undo it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ragbias.boundaries.patterns import NUMBERED_HEADER
from ragbias.boundaries.spans import Span
from ragbias.boundaries.splitting.headers_and_separators import split
from ragbias.errors import AmbiguousSegmentsError

DOCUMENT_NUMBER = (
    r"""(?:\[(\d{1,4})\]|\((\d{1,4})\)|(?:id|index|number|no)=["']?(\d{1,4})["']?|\#?(\d{1,4})(?!\w|[.,]\d))"""
)
HEADER_OR_TAG = re.compile(rf"{NUMBERED_HEADER.pattern}|<\w[^<>\n]*>", re.VERBOSE)
FIRST_NUMBER = re.compile(rf"\A\W*?(?:[^\W\d]+\W+?)??(?P<number>(?<!\w){DOCUMENT_NUMBER})")  # after one word at most


class NumberedHeadersWarning(UserWarning):
    """The documents' headers number them, which tells the model the order that a method shall not depend on."""


def has_numbering(text: str, spans: Sequence[Span]) -> bool:
    """Whether the documents are numbered consecutively in their headers, in whatever order.

    Such headers are ``Document [3](Title: ...)``, ``[3]``, ``Source 3:``, ``3.`` or ``<doc id="3">``, be it before the
    spans or at their beginning.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters, as ``Boundaries`` has them.
    """
    return bool(_numbers(text, spans))


def strip_numbering(text: str, spans: Sequence[Span]) -> tuple[str, list[Span]]:
    """The prompt without the numbers that ``has_numbering`` finds, and where its documents are.

    Only headers are changed; what cites a document by its number, in the question say, is left as it is.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters, as ``Boundaries`` has them.
    """
    cuts = _numbers(text, spans)

    def moved(position: int) -> int:
        return position - sum(min(end, position) - begin for begin, end in cuts if begin < position)

    edges = [0, *(edge for cut in cuts for edge in cut), len(text)]
    kept = "".join(text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True))
    return kept, [(moved(begin), moved(end)) for begin, end in spans]


def _numbers(text: str, spans: Sequence[Span]) -> list[Span]:
    """What to cut out of each header to take its number away; nothing if they are not numbered consecutively."""
    if len(spans) < 2:
        return []
    try:
        before = [
            (begin - len(header), begin) for header, (begin, _) in zip(split(text, spans).headers, spans, strict=True)
        ]
    except AmbiguousSegmentsError:
        before = []
    inside = [match.span() for match in (HEADER_OR_TAG.match(text, begin) for begin, _ in spans) if match]
    for headers in (before, inside):
        found = [FIRST_NUMBER.match(text[begin:end]) for begin, end in headers]
        numbers = sorted(_value(match) for match in found if match)
        if len(numbers) == len(spans) and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return [_cut(text, header, match) for header, match in zip(headers, found, strict=True) if match]
    return []


def _value(match: re.Match[str]) -> int:
    return int(next(group for group in match.groups()[1:] if group is not None))


def _cut(text: str, header: Span, match: re.Match[str]) -> Span:
    """The number, and the space or punctuation that would be left over without it."""
    begin, end = header[0] + match.start("number"), header[0] + match.end("number")
    if not text[header[0] : begin].strip():
        while end < header[1] and text[end] in " \t:.)":
            end += 1
    elif text[begin - 1] == " " and text[end : end + 1] not in ("(", "["):
        begin -= 1
    return begin, end
