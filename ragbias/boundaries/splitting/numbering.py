"""Find and strip the documents' numbers: they show the order in the text itself, where no method can undo it.

Arabic numbers that surely belong to the template can be cut out. The set of numbers alone decides that, never their
order, so it is the same in every order of the documents. Whatever else counts with the position (letters, words, or
figures such as ``Apollo 11``, ``Apollo 12``) may be the documents' own: it is reported and left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from ragbias.boundaries.patterns import MESSAGE_BORDER, NUMBERED_HEADER
from ragbias.boundaries.spans import Span
from ragbias.boundaries.splitting.number_candidates import TOTAL, Candidate, candidates_in, cut

REACH = 1000  # characters of a gap, or around all documents, that may hold a document's number
INSIDE = 300  # characters of a text that may hold a number in front of it
MAX_TAG = 48  # characters at the end of a text that may hold a closing tag
MAX_COMPARED = 20  # documents whose counters are compared, if they are not certain
SMALL = 100  # two numbers below it may count with any step
HEADER_OR_TAG = re.compile(rf"{NUMBERED_HEADER.pattern}|<\w[^<>\n]*>", re.VERBOSE)
CLOSING_TAG = re.compile(r"</\w[^<>\n]*>\s*\Z")
FIELD_LINE = re.compile(r"[^\W\d][\w .-]{0,40}:[ \t].*|\s*")  # of metadata
OWN_HEADING = re.compile(r"[:.)\]}>\"'/|\n](?!\w)|\Z")  # after a number in front of a text; not ``a.txt``

Series = Sequence[Candidate]  # one for each document


class NumberedHeadersWarning(UserWarning):
    """The text around the documents numbers them, which shows the model the order that a method must not depend on."""


@dataclass(frozen=True)
class Numbering:
    """The numbers of a prompt's documents.

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
        bare = "".join(text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True))
        return bare, [(self._moved(begin), self._moved(end)) for begin, end in spans]

    def parts(self, text: str) -> list[tuple[int, int, str]]:
        """For each cut the document's index, the position in the stripped prompt, and the text that was cut."""
        return [(index, self._moved(begin), text[begin:end]) for (begin, end), index in self.cuts]

    def _moved(self, position: int) -> int:
        return position - sum(min(end, position) - begin for (begin, end), _ in self.cuts if begin < position)


def has_numbering(text: str, spans: Sequence[Span]) -> bool:
    """Whether text around the documents counts with their position, in headers, footers, tags, attributes or fields.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters, as ``Boundaries`` has them.
    """
    return find_numbering(text, spans).seen


def strip_numbering(text: str, spans: Sequence[Span]) -> tuple[str, list[Span]]:
    """Cut out the arabic numbers that are surely not the documents' own.

    Text that cites a document by its number, say in the question, is left. ``has_numbering`` says whether the
    result still counts.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters, as ``Boundaries`` has them.

    Returns:
        the prompt without the numbers, and the spans of its documents there.
    """
    return find_numbering(text, spans).stripped(text, spans)


def find_numbering(text: str, spans: Sequence[Span], metadata: Sequence[Collection[str]] = ()) -> Numbering:
    """The numbers of documents, whose texts are at the spans, with or without their headers.

    ``metadata`` lists for each document its known values, which are its own and no numbers.
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
                cuts |= {cut(text, each, opens): index for index, each in enumerate(series)}
    beginnings = _Regions(text, [(begin, min(end, begin + INSIDE)) for begin, end in spans[:MAX_COMPARED]])
    headings = filter(_is_heading, beginnings.by_position(taken))
    doubtful = any(
        not all(_is_own(text, each, known[index]) for index, each in enumerate(series)) or _from_first(series)
        for found in (*(regions.by_position(taken) for regions in everywhere), headings)
        for series in found
    )
    return Numbering(tuple(_apart(cuts)), doubtful or _counts_between(before, after, taken))


class _Regions:
    """Regions of a prompt, one for each document, that may hold the documents' numbers.

    ``edge`` is the index of the region that reaches beyond its document: the first one before all documents, or the
    last one after all. ``groups`` holds the candidates by region and by ``Candidate.keys``, the exact keys first.
    """

    def __init__(self, text: str, spans: Sequence[Span], edge: int | None = None) -> None:
        self.spans, self.edge = spans, edge
        self.groups: list[dict[tuple[str, ...], dict[int, list[Candidate]]]] = [{}, {}]
        for index, span in enumerate(spans):
            for candidate in candidates_in(text, span):
                if index >= MAX_COMPARED and candidate.kind != "figure":
                    continue
                keys = candidate.keys()
                self._add(keys, index, candidate)
                opening = candidate._replace(line=re.split(r"[\s>:\[({]", candidate.line)[-1])
                if index == edge == 0 and opening.keys() != keys and not opening.line[-1:].isalnum():
                    self._add(opening.keys(), index, candidate)  # as in ``Context: 1. ...``, where others begin a line

    def _add(self, keys: Sequence[tuple[str, ...]], index: int, candidate: Candidate) -> None:
        for group, key in zip(self.groups, keys, strict=True):
            group.setdefault(key, {}).setdefault(index, []).append(candidate)

    def filled(self, exact: bool, count: int) -> Iterator[tuple[tuple[str, ...], list[list[Candidate]]]]:
        """The candidates of the first ``count`` regions, where all regions but one have some."""
        for key, found in self.groups[not exact].items():
            by_region = [found.get(index, []) for index in range(count)]
            if by_region.count([]) <= 1:
                yield key, by_region

    def without_edge(self, series: Series) -> Series:
        return [candidate for index, candidate in enumerate(series) if index != self.edge]

    def certain(self, taken: AbstractSet[Span]) -> Iterator[Series]:
        """The numbers that surely belong to the template."""
        for exact in (True, False):
            for key, by_region in self.filled(exact, len(self.spans)):
                for series in self._aligned(by_region) if key[0] == "figure" else ():
                    if taken.isdisjoint(candidate.span for candidate in series) and self._is_certain(series, exact):
                        yield series

    def _aligned(self, by_region: Sequence[Sequence[Candidate]]) -> Iterator[Series]:
        """The candidates of all regions in their order there, if all have equally many."""
        inner = {len(each) for index, each in enumerate(by_region) if index != self.edge}
        count = inner.pop()
        if not inner and all(len(each) >= count for each in by_region):
            equal = [each[:count] if index else each[len(each) - count :] for index, each in enumerate(by_region)]
            yield from zip(*equal, strict=True)

    def _is_certain(self, series: Series, exact: bool) -> bool:
        values = sorted(candidate.value for candidate in series)
        steps = {right - left for left, right in pairwise(values)}
        from_first = steps == {1} and values[0] in (0, 1)
        if len(steps) > 1 or 0 in steps or (len(values) == 2 and not (from_first or (exact and _may_count(*values)))):
            return False
        inner = self.without_edge(series)
        if len({total[1] if (total := TOTAL.match(candidate.after)) else "" for candidate in inner}) > 1:
            return False
        if all(candidate.is_labelled for candidate in inner):
            return True
        return from_first and not any(candidate.is_glued or candidate.is_compound for candidate in inner)

    def by_position(self, taken: Collection[Span]) -> Iterator[Series]:
        """Whatever counts with the position, up or down."""
        for exact in (True, False):
            for _, by_region in self.filled(exact, min(len(self.spans), MAX_COMPARED)):
                yield from _counting(_without(taken, by_region), exact)


def _around(text: str, spans: Sequence[Span]) -> tuple[_Regions, _Regions]:
    """The regions before each document, and those after each."""
    first, last = spans[0][0], spans[-1][1]
    borders = [match.end() for match in MESSAGE_BORDER.finditer(text, max(0, first - REACH), first)]
    border = MESSAGE_BORDER.search(text, last, last + REACH)
    gaps = [(left[1], right[0]) for left, right in pairwise(spans)]
    before = [(max([first - REACH, 0, *borders]), first), *((max(begin, end - REACH), end) for begin, end in gaps)]
    after = [
        *((begin, min(end, begin + REACH)) for begin, end in gaps),
        (last, border.start() if border else min(len(text), last + REACH)),
    ]
    return _Regions(text, before, 0), _Regions(text, after, len(spans) - 1)


def _in_headers(text: str, spans: Sequence[Span]) -> list[_Regions]:
    """The known headers and tags at the beginnings of the spans, also below lines of metadata, and tags at the ends."""
    headers = [_header(text, *span) for span in spans]
    tags = [CLOSING_TAG.search(text, max(begin, end - MAX_TAG), end) for begin, end in spans]
    found = [headers, [tag and tag.span() for tag in tags]]
    return [_Regions(text, [each for each in some if each]) for some in found if all(some)]


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


def _is_heading(series: Series) -> bool:
    """Whether these are headings at the beginnings of texts, which are the documents' own as a rule."""
    few = len(series) == 2 and {candidate.value for candidate in series} not in ({0, 1}, {1, 2})
    alike = len({candidate.line for candidate in series}) == 1
    return alike and not few and all(OWN_HEADING.match(candidate.after) for candidate in series)


def _from_first(series: Series) -> bool:
    """Whether these are the figures 0, 1, 2 or 1, 2, 3, as in a template, by accident or not."""
    values = [candidate.value for candidate in series]
    return series[0].kind == "figure" and values[0] in (0, 1) and values == list(range(values[0], values[-1] + 1))


def _counts_between(before: _Regions, after: _Regions, taken: Collection[Span]) -> bool:
    """Whether text that is only between the documents, not before the first nor after the last one, counts."""
    for exact in (True, False):
        for key, by_region in before.filled(exact, min(len(before.spans), MAX_COMPARED)):
            inner = _without(taken, by_region[1:])
            beyond = by_region[0] or len(after.spans) - 1 in after.groups[not exact].get(key, ())
            if len(inner) > 1 and all(inner) and not beyond and any(True for _ in _counting(inner, exact)):
                return True
    return False


def _without(taken: Collection[Span], by_region: Sequence[Series]) -> list[Series]:
    return [[candidate for candidate in each if candidate.span not in taken] for each in by_region]


def _counting(by_region: Sequence[Series], exact: bool) -> Iterator[Series]:
    """Choices of one candidate in each region, whose values have one step, up or down."""
    if len(by_region) == 2:
        yield from ([a, b] for a in by_region[0] for b in by_region[1] if _are_counted(a, b, exact))
    elif all(by_region):
        by_value = [{candidate.value: candidate for candidate in each} for each in by_region]
        for first in by_value[0]:
            for second in by_value[1]:
                step = second - first
                if step and all(first + index * step in values for index, values in enumerate(by_value)):
                    yield [values[first + index * step] for index, values in enumerate(by_value)]


def _may_count(low: int, high: int) -> bool:
    """Whether two numbers are likely to count: any two are in arithmetic progression."""
    return high - low == 1 or low in (-1, 0, 1) or high == 2 * low


def _are_counted(left: Candidate, right: Candidate, exact: bool) -> bool:
    """Whether two candidates number two documents; ``exact``: with the same word before them."""
    low, high = sorted((left.value, right.value))
    if low == high or any(candidate.is_compound or (candidate.is_glued and not exact) for candidate in (left, right)):
        return False
    if left.kind != "figure":
        return (low, high) == (1, 2)
    alike = exact or (left.is_labelled and right.is_labelled)
    return _may_count(low, high) or (alike and -SMALL < low < high < SMALL)


def _apart(cuts: dict[Span, int]) -> Iterator[tuple[Span, int]]:
    """The cuts in ascending order, without shared characters."""
    edge = 0
    for (begin, end), index in sorted(cuts.items()):
        if max(begin, edge) < end:
            yield (max(begin, edge), end), index
            edge = end
