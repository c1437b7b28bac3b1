"""Finding and stripping the documents' numbers: they tell the order in the text itself, where no method can undo it.

Whatever counts with the position is numbering, wherever it stands around the texts. What is surely a number of the
template can be taken out: that is decided by the set of numbers alone, never by their order, so it is the same in every
order of the documents. What may be a document's own (``Apollo 11``, ``Apollo 12``) is only seen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ragbias.boundaries.patterns import MESSAGE_BORDER, NUMBERED_HEADER
from ragbias.boundaries.spans import Span
from ragbias.boundaries.splitting.number_candidates import Candidate
from ragbias.boundaries.splitting.number_cuts import cut
from ragbias.boundaries.splitting.number_series import Beginnings, Regions, Series, counts_between

REACH = 1000  # characters of a gap, or around all documents, in which a document's number is looked for
INSIDE = 300  # characters of a text in which a number in front of it is looked for
MAX_TAG = 48  # characters at the end of a text in which a closing tag is looked for
HEADER_OR_TAG = re.compile(rf"{NUMBERED_HEADER.pattern}|<\w[^<>\n]*>", re.VERBOSE)
CLOSING_TAG = re.compile(r"</\w[^<>\n]*>\s*\Z")
FIELD_LINE = re.compile(r"[^\W\d][\w .-]{0,40}:[ \t].*|\s*")  # of metadata


class NumberedHeadersWarning(UserWarning):
    """The text around the documents numbers them, which tells the model the order that a method shall not depend on."""


@dataclass(frozen=True)
class Numbering:
    """What numbers the documents of a prompt.

    Attributes:
        cuts: spans of the prompt without which the numbers are gone, ascending, each with the index of its document.
        doubtful: whether more counts with the position, which may be the documents' own and is left.
    """

    cuts: tuple[tuple[Span, int], ...] = ()
    doubtful: bool = False

    @property
    def seen(self) -> bool:
        """Whether there is any."""
        return bool(self.cuts) or self.doubtful

    def stripped(self, text: str, spans: Sequence[Span]) -> tuple[str, list[Span]]:
        """The prompt without the cuts, and where its documents are."""
        edges = [0, *(edge for span, _ in self.cuts for edge in span), len(text)]
        kept = "".join(text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True))
        return kept, [(self._moved(begin), self._moved(end)) for begin, end in spans]

    def parts(self, text: str) -> list[tuple[int, int, str]]:
        """What the cuts hold: of each the document's index, the position in the stripped prompt, and the text."""
        return [(index, self._moved(begin), text[begin:end]) for (begin, end), index in self.cuts]

    def _moved(self, position: int) -> int:
        return position - sum(min(end, position) - begin for (begin, end), _ in self.cuts if begin < position)


def has_numbering(text: str, spans: Sequence[Span]) -> bool:
    """Whether something around the documents counts with their position: numbers, letters, ordinals, number words, in
    headers, footers, tags, attributes or JSON fields, before the spans, after them, or in a header inside them.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters, as ``Boundaries`` has them.
    """
    return find_numbering(text, spans).seen


def strip_numbering(text: str, spans: Sequence[Span]) -> tuple[str, list[Span]]:
    """The prompt without the numbers that are surely not the documents' own, and where its documents are.

    What cites a document by its number, in the question say, is left as it is. ``has_numbering`` tells whether anything
    is left that counts.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters, as ``Boundaries`` has them.
    """
    return find_numbering(text, spans).stripped(text, spans)


def find_numbering(text: str, spans: Sequence[Span], metadata: Sequence[Collection[str]] = ()) -> Numbering:
    """What numbers the documents.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of the documents' texts in characters, ascending, with or without their headers.
        metadata: of each document, how its known metadata are printed: such values are its own.
    """
    if len(spans) < 2:
        return Numbering()
    known = metadata or [()] * len(spans)
    cuts: dict[Span, int] = {}
    taken: set[Span] = set()
    before, after = _around(text, spans)
    everywhere = [before, after, *_in_headers(text, spans)]
    for regions in everywhere:
        for series in regions.certain(taken):
            if not all(_is_own(text, each, known[index]) for index, each in enumerate(series)):
                taken.update(each.span for each in series)
                opens = all(candidate.opens for candidate in regions.without_edge(series))
                cuts |= {cut(text, each.span, each.region, opens): index for index, each in enumerate(series)}
    everywhere.append(Beginnings(text, [(begin, min(end, begin + INSIDE)) for begin, end in spans]))
    doubtful = any(
        not all(_is_own(text, each, known[index]) for index, each in enumerate(series)) or _from_first(series)
        for regions in everywhere
        for series in regions.by_position(taken)
    )
    return Numbering(tuple(sorted(_apart(cuts))), doubtful or counts_between(before, after, taken))


def _around(text: str, spans: Sequence[Span]) -> tuple[Regions, Regions]:
    """What is before each document, and what is after each."""
    first, last = spans[0][0], spans[-1][1]
    borders = [match.end() for match in MESSAGE_BORDER.finditer(text, max(0, first - REACH), first)]
    border = MESSAGE_BORDER.search(text, last, last + REACH)
    gaps = [(left[1], right[0]) for left, right in pairwise(spans)]
    before = [(max([first - REACH, 0, *borders]), first), *((max(begin, end - REACH), end) for begin, end in gaps)]
    after = [
        *((begin, min(end, begin + REACH)) for begin, end in gaps),
        (last, border.start() if border else min(len(text), last + REACH)),
    ]
    return Regions(text, before, 0), Regions(text, after, len(spans) - 1)


def _in_headers(text: str, spans: Sequence[Span]) -> list[Regions]:
    """The known headers and tags at the beginnings of the spans, also below lines of metadata, and tags at the ends."""
    found = [_header(text, *span) for span in spans]
    tags = [CLOSING_TAG.search(text, max(begin, end - MAX_TAG), end) for begin, end in spans]
    regions = []
    if all(found):
        regions.append(Regions(text, [each for each in found if each]))
    if all(tags):
        regions.append(Regions(text, [tag.span() for tag in tags if tag]))
    return regions


def _header(text: str, begin: int, end: int) -> Span | None:
    limit = min(end, begin + REACH)
    while begin < limit:
        if match := HEADER_OR_TAG.match(text, begin, end):
            return match.span()
        line = text.find("\n", begin, limit)
        if line < 0 or not FIELD_LINE.fullmatch(text, begin, line):
            return None
        begin = line + 1
    return None


def _is_own(text: str, candidate: Candidate, values: Collection[str]) -> bool:
    """Whether the candidate is in a value of the document's metadata."""
    begin, end = candidate.span
    return any(
        text.find(value, max(0, end - len(value)), begin + len(value)) >= 0
        for value in values
        if len(value) >= end - begin
    )


def _from_first(series: Series) -> bool:
    """Whether they are the figures 0, 1, 2 or 1, 2, 3, as of a template, by accident or not."""
    values = [candidate.value for candidate in series]
    return (
        series[0].counter.kind == "figure"
        and values[0] in (0, 1)
        and values == list(range(values[0], values[0] + len(values)))
    )


def _apart(cuts: dict[Span, int]) -> Iterator[tuple[Span, int]]:
    """The cuts, of which two may share characters, in ascending order and apart."""
    edge = 0
    for (begin, end), index in sorted(cuts.items()):
        if max(begin, edge) < end:
            yield (max(begin, edge), end), index
            edge = end
