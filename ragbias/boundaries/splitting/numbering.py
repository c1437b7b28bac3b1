"""Finding and stripping the documents' numbers: they tell the order in the text itself, where no method can undo it.

Whatever counts with the position is numbering, wherever it stands around the texts. What is surely a number of the
template can be taken out: that is decided by the set of numbers alone, never by their order, so it is the same in every
order of the documents. What may be a document's own (``Apollo 11``, ``Apollo 12``) is only seen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ragbias.boundaries.patterns import DOCUMENT_LABEL, MESSAGE_BORDER, NUMBERED_HEADER
from ragbias.boundaries.spans import Span
from ragbias.boundaries.splitting.counters import Counter, counters
from ragbias.boundaries.splitting.number_cuts import TAG, TOTAL, cut

REACH = 1000  # characters of a gap, or around all documents, in which a document's number is looked for
INSIDE = 300  # characters of a text in which a number in front of it is looked for
LINE = 24  # characters before a number that are compared
SMALL = 100  # two numbers below it may count with any step
HEADER_OR_TAG = re.compile(rf"{NUMBERED_HEADER.pattern}|<\w[^<>\n]*>", re.VERBOSE)
CLOSING_TAG = re.compile(r"</\w[^<>\n]*>\s*\Z")
FIELD_LINE = re.compile(r"[^\W\d][\w .-]{0,40}:[ \t].*|\s*")  # of metadata
LAST_WORD = re.compile(r"[^\w\s]{0,2}\w*\W{0,3}\Z")
LABELLED = re.compile(
    rf"(?:^|[\W_])(?:{DOCUMENT_LABEL}|(?i:id|index|idx|number|no|nr|num|rank|item|entry|ref|reference|citation|evidence"
    r"|fact|record|article|paragraph|part))[\W_]{0,4}\Z|[#(\[{<]\Z"
)


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
    readings = [*_around(text, spans), *_in_headers(text, spans)]
    for reading in readings:
        for series in reading.certain(taken):
            if not all(_is_own(text, each, known[index]) for index, each in enumerate(series)):
                taken.update(each.span for each in series)
                opens = all(place.opens for place in reading.without_edge(series))
                cuts |= {cut(text, each.span, each.region, opens): index for index, each in enumerate(series)}
    readings += _at_beginnings(text, spans)
    doubtful = any(
        not all(_is_own(text, each, known[index]) for index, each in enumerate(series)) or _from_first(series)
        for reading in readings
        for series in reading.by_position(taken)
    )
    return Numbering(tuple(sorted(_apart(cuts))), doubtful or _between(readings[0], readings[1], taken))


class _Place(NamedTuple):
    """A counter and what is around it."""

    counter: Counter
    line: str  # what is before it, in its line
    after: str  # up to four characters after it
    region: Span

    @property
    def span(self) -> Span:
        return self.counter.begin, self.counter.end

    @property
    def value(self) -> int:
        return self.counter.value

    @property
    def opens(self) -> bool:
        """Whether it begins its line."""
        return not self.line.rstrip("([{#").strip()

    @property
    def is_glued(self) -> bool:
        """Whether it is a part of a word."""
        return self.line[-1:].isalnum() or self.after[:1].isalnum()

    @property
    def is_compound(self) -> bool:
        """Whether it is a part of a number such as a date or a decimal."""
        left, right = self.line[-2:], self.after[:2]
        return bool(re.match(r"\d[.,:/-]", left) or re.match(r"[.,:/-]\d", right)) and not TOTAL.match(self.after)

    @property
    def is_labelled(self) -> bool:
        """Whether the like of it numbers documents: in brackets, in a tag, after a label, or where a line begins."""
        if self.is_compound:
            return False
        if TAG.search(self.line) and re.match(r"[\s/>]", self.after):
            return True
        if self.after[:1].isalnum():
            return False
        if LABELLED.search(self.line) or self.line[-1:].isalnum():
            return LABELLED.search(self.line) is not None
        closed = self.after[:1] in (".", ":") or not self.after.strip()
        return (closed and self.opens) or self.after[:1] in (")", "]")

    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What those that count together have in common: the last word before them, or at least one character."""
        word = LAST_WORD.search(self.line)
        assert word is not None  # it may be empty
        after = _alike(self.after[:1])
        kind = self.counter.kind
        return (kind, word[0].lower().replace("'", '"'), after), (kind, _alike(self.line[-1:]), after)


Series = list[_Place]  # one place for each document


@dataclass
class _Reading:
    """Regions of a prompt, one for each document, in which the documents' numbers may be.

    Attributes:
        edge: index of the region that goes on beyond what belongs to a document: the first one before all, or the last
            one after all.
    """

    text: str
    regions: Sequence[Span]
    edge: int | None = None
    groups: list[dict[tuple[str, ...], list[Series]]] = field(init=False)

    def __post_init__(self) -> None:
        self.groups = [{}, {}]
        for index, region in enumerate(self.regions):
            for place in _places(self.text, region):
                keys = place.keys()
                self._add(keys, index, place)
                opening = place._replace(line=re.split(r"[\s>:\[({]", place.line)[-1])
                if index == self.edge == 0 and opening.keys() != keys and not opening.line[-1:].isalnum():
                    self._add(opening.keys(), index, place)  # as in ``Context: 1. ...``, where others begin a line

    def _add(self, keys: Sequence[tuple[str, ...]], index: int, place: _Place) -> None:
        for group, key in zip(self.groups, keys, strict=True):
            group.setdefault(key, [[] for _ in self.regions])[index].append(place)

    def without_edge(self, series: Sequence[_Place]) -> Series:
        return [place for index, place in enumerate(series) if index != self.edge]

    def certain(self, taken: AbstractSet[Span]) -> Iterator[Series]:
        """What surely numbers the documents: decided by the set of values, so in the same way in every order."""
        for exact, group in zip((True, False), self.groups, strict=True):
            for rows in group.values():
                for series in self._aligned(rows):
                    if taken.isdisjoint(place.span for place in series) and self._is_certain(series, exact):
                        yield series

    def _aligned(self, rows: Sequence[Series]) -> Iterator[Series]:
        """The rows place by place, if all have equally many."""
        inner = {len(row) for index, row in enumerate(rows) if index != self.edge}
        count = inner.pop()
        if inner or any(len(row) < count for row in rows):
            return
        equal = [row[:count] if index else row[len(row) - count :] for index, row in enumerate(rows)]
        yield from map(list, zip(*equal, strict=True))

    def _is_certain(self, series: Series, exact: bool) -> bool:
        values = sorted(place.value for place in series)
        steps = {right - left for left, right in pairwise(values)}
        from_first, kind = steps == {1} and values[0] in (0, 1), series[0].counter.kind
        if len(steps) > 1 or 0 in steps or (len(values) == 2 and not (_may_count(*values) if exact else from_first)):
            return False
        inner = self.without_edge(series)
        totals = {total[1] if (total := TOTAL.match(place.after)) else "" for place in inner}
        if len(totals) > 1:
            return False
        if all(place.is_labelled for place in inner):
            return from_first or kind == "figure"
        whole = not any(place.is_glued or place.is_compound for place in inner)
        return from_first and whole and kind in ("figure", "word")

    def by_position(self, taken: Collection[Span]) -> Iterator[Series]:
        """Whatever counts with the position, up or down."""
        for exact, group in zip((True, False), self.groups, strict=True):
            for rows in group.values():
                left = [[place for place in row if place.span not in taken] for row in rows]
                if len(left) > 2:
                    yield from _progressions(left)
                elif all(left):
                    yield from ([a, b] for a in left[0] for b in left[1] if _are_counted(a, b, exact))


class _Beginnings(_Reading):
    """The first lines of the texts, which are the documents' own as a rule."""

    def by_position(self, taken: Collection[Span]) -> Iterator[Series]:
        for series in super().by_position(taken):
            ends = all(re.match(r"[:.)\]}>\"'/|\n](?!\w)|\Z", place.after) for place in series)  # not ``a.txt``
            few = len(series) == 2 and {place.value for place in series} not in ({0, 1}, {1, 2})
            if ends and not few and len({place.line for place in series}) == 1:
                yield series


def _around(text: str, spans: Sequence[Span]) -> list[_Reading]:
    """What is before each document, and what is after each."""
    first, last = spans[0][0], spans[-1][1]
    borders = [match.end() for match in MESSAGE_BORDER.finditer(text, max(0, first - REACH), first)]
    after = MESSAGE_BORDER.search(text, last, last + REACH)
    gaps = [(left[1], right[0]) for left, right in pairwise(spans)]
    before = [(max([first - REACH, 0, *borders]), first), *((max(begin, end - REACH), end) for begin, end in gaps)]
    behind = [
        *((begin, min(end, begin + REACH)) for begin, end in gaps),
        (last, after.start() if after else min(len(text), last + REACH)),
    ]
    return [_Reading(text, before, 0), _Reading(text, behind, len(spans) - 1)]


def _in_headers(text: str, spans: Sequence[Span]) -> list[_Reading]:
    """The known headers and tags at the beginnings of the spans, also below lines of metadata, and tags at the ends."""
    found = [_header(text, *span) for span in spans]
    tags = [CLOSING_TAG.search(text, max(begin, end - LINE * 2), end) for begin, end in spans]
    readings = []
    if all(found):
        readings.append(_Reading(text, [each for each in found if each]))
    if all(tags):
        readings.append(_Reading(text, [tag.span() for tag in tags if tag]))
    return readings


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


def _at_beginnings(text: str, spans: Sequence[Span]) -> list[_Reading]:
    return [_Beginnings(text, [(begin, min(end, begin + INSIDE)) for begin, end in spans])]


def _places(text: str, region: Span) -> Iterator[_Place]:
    begin, end = region
    for counter in counters(text, begin, end):
        line = text[max(begin, counter.begin - LINE) : counter.begin].rpartition("\n")[2]
        yield _Place(counter, line, text[counter.end : min(end, counter.end + 12)], region)


def _alike(char: str) -> str:
    """Space of any kind, and none, are alike, and so are quotation marks."""
    return (char.strip() or " ").replace("'", '"')


def _may_count(low: int, high: int) -> bool:
    """Whether two numbers are likely to count: any two are in arithmetic progression."""
    return high - low == 1 or low in (-1, 0, 1) or high == 2 * low


def _are_counted(left: _Place, right: _Place, exact: bool) -> bool:
    low, high = sorted((left.value, right.value))
    if low == high or any(place.is_compound or (place.is_glued and not exact) for place in (left, right)):
        return False
    if left.counter.kind != "figure":
        return (low, high) == (1, 2)
    alike = exact or (left.is_labelled and right.is_labelled)
    return _may_count(low, high) or (alike and -SMALL < low < high < SMALL)


def _progressions(rows: Sequence[Series]) -> Iterator[Series]:
    """Choices of one place in each row, whose values have one step, up or down."""
    by_value = [{place.value: place for place in row} for row in rows]
    if not all(by_value):
        return
    for first in by_value[0]:
        for second in by_value[1]:
            step = second - first
            if step and all(first + index * step in values for index, values in enumerate(by_value)):
                yield [values[first + index * step] for index, values in enumerate(by_value)]


def _between(before: _Reading, behind: _Reading, taken: Collection[Span]) -> bool:
    """Whether what stands only between the documents, neither before the first nor after the last one, counts."""
    for exact, ahead, after in zip((True, False), before.groups, behind.groups, strict=True):
        for key, rows in ahead.items():
            inner = [[place for place in row if place.span not in taken] for row in rows[1:]]
            if len(inner) < 2 or not all(inner) or rows[0] or (key in after and after[key][-1]):
                continue
            if len(inner) > 2 and any(True for _ in _progressions(inner)):
                return True
            if len(inner) == 2 and any(_are_counted(a, b, exact) for a in inner[0] for b in inner[1]):
                return True
    return False


def _is_own(text: str, place: _Place, values: Collection[str]) -> bool:
    """Whether the counter is in a value of the document's metadata."""
    begin, end = place.span
    return any(
        text.find(value, max(0, end - len(value)), begin + len(value)) >= 0
        for value in values
        if len(value) >= end - begin
    )


def _from_first(series: Series) -> bool:
    """Whether they are the figures 0, 1, 2 or 1, 2, 3, as of a template, by accident or not."""
    values = [place.value for place in series]
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
