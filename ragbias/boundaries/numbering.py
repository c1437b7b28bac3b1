"""Find and strip document numbers, which reveal the order of the documents to every method.

An Arabic number is stripped only if it certainly belongs to the template. The set of numbers decides that, so the
result is the same in every order of the documents. Other counters may belong to the documents: letters, number words,
or the figures in ``Apollo 11`` and ``Apollo 12``. They are reported, but not stripped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import NamedTuple

from ragbias.boundaries.splitting import DocumentNumbers
from ragbias.boundaries.text import DOCUMENT_LABEL, MESSAGE_BORDER, NUMBERED_HEADER, CharSpan

REACH = 1000  # characters before and after a document that are searched for its number
INSIDE = 300  # characters at the beginning of a text that are searched for its number
MAX_TAG = 48  # characters at the end of a text that are searched for a closing tag
MAX_COMPARED = 20  # documents whose uncertain counters are compared
SMALL = 100  # two numbers below this limit may have any step between them
HEADER_OR_TAG = re.compile(rf"{NUMBERED_HEADER.pattern}|<\w[^<>\n]*>", re.VERBOSE)
CLOSING_TAG = re.compile(r"</\w[^<>\n]*>\s*\Z")
FIELD_LINE = re.compile(r"[^\W\d][\w .-]{0,40}:[ \t].*|\s*")  # a line of metadata, or a blank line
OWN_HEADING = re.compile(r"[:.)\]}>\"'/|\n](?!\w)|\Z")  # follows the number of a heading, unlike ``1.txt``
WORDS = {  # counters that are reported but never cut out
    "letter": "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "roman": "i ii iii iv v vi vii viii ix x xi xii xiii xiv xv xvi xvii xviii xix xx",
    "word": "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty",
    "ordinal": "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth",
}
VALUES: dict[str, list[tuple[str, int]]] = {}
for _kind, _words in WORDS.items():
    for _value, _word in enumerate(_words.split(), 1):
        VALUES.setdefault(_word, []).append((_kind, _value))
COUNTER = re.compile(r"(?:(?<![\w)\]}.-])-)?(?<!\d)\d{1,12}(?!\d)(?:(?:st|nd|rd|th)(?![^\W_]))?|[^\W\d_]+")
MAX_BEFORE, MAX_AFTER = 24, 12  # characters compared before a number in its line, and after it
LAST_WORD = re.compile(r"[^\w\s]{0,2}\w*\W{0,3}\Z")
LABELLED = re.compile(
    rf"(?:^|[\W_])(?:{DOCUMENT_LABEL}|(?i:id|index|idx|number|no|nr|num|rank|item|entry|ref|reference|citation|evidence"
    r"|fact|record|article|paragraph|part))[\W_]{0,4}\Z|[#(\[{<]\Z"
)
FIELD = 48  # characters before a number that are searched for the name of its field
OPEN_TAG = re.compile(r"</?[^\W\d][\w-]*\Z")
TOTAL = re.compile(r"\s*(?:/|of|out of)\s*(\d{1,4})(?![\d/]|[.-]\d)")
ATTRIBUTE = re.compile(r"[\w.-]+=[\"']?\Z")
JSON_FIELD = re.compile(r"([\"'])[\w .-]+\1[ ]?:[ ]?[\"']?\Z")
BRACKETS = {"[": "]", "(": ")", "{": "}"}


class Candidate(NamedTuple):
    """A piece ``text[begin:end]`` that may be a document's number. Only candidates of one ``kind`` are compared."""

    begin: int
    end: int
    kind: str
    value: int
    line: str  # the text before the candidate in its line
    after: str
    region: CharSpan

    @property
    def span(self) -> CharSpan:
        return self.begin, self.end

    @property
    def opens(self) -> bool:
        """Whether the candidate begins its line."""
        return not self.line.rstrip("([{#").strip()

    @property
    def is_glued(self) -> bool:
        """Whether the candidate is part of a word."""
        return self.line[-1:].isalnum() or self.after[:1].isalnum()

    @property
    def is_compound(self) -> bool:
        """Whether the candidate is part of a number such as a date or a decimal."""
        left, right = self.line[-2:], self.after[:2]
        return bool(re.match(r"\d[.,:/-]", left) or re.match(r"[.,:/-]\d", right)) and not TOTAL.match(self.after)

    @property
    def is_labelled(self) -> bool:
        """Whether the candidate is bracketed, in a tag, after a label, or first in its line, like most numbers."""
        if self.is_compound:
            return False
        if OPEN_TAG.search(self.line) and re.match(r"[\s/>]", self.after):
            return True
        if self.after[:1].isalnum():
            return False
        if LABELLED.search(self.line) or self.line[-1:].isalnum():
            return LABELLED.search(self.line) is not None
        closed = self.after[:1] in (".", ":") or not self.after.strip()
        return (closed and self.opens) or self.after[:1] in (")", "]")

    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return two keys to group candidates into series: by the word and by the character before each candidate."""
        word = (OPEN_TAG.findall(self.line) or LAST_WORD.findall(self.line))[0]  # may be empty, or blank within a line
        after = _alike(self.after[:1])
        return (self.kind, word.strip().lower().replace("'", '"'), after), (self.kind, _alike(self.line[-1:]), after)


def _candidates_in(text: str, region: CharSpan) -> Iterator[Candidate]:
    first, last = region
    part = text[first:last]
    for match in COUNTER.finditer(part):
        for begin, end, kind, value in _counters(part, *match.span()):
            before = part[max(0, begin - MAX_BEFORE) : begin].rpartition("\n")[2]
            yield Candidate(first + begin, first + end, kind, value, before, part[end : end + MAX_AFTER], region)


def _counters(text: str, begin: int, end: int) -> Iterator[tuple[int, int, str, int]]:
    word = text[begin:end]
    if any(map(str.isdecimal, word)):
        yield begin, end, "figure", int(word.rstrip("stndrh"))
        return
    numerals = [at for at in range(begin, end) if unicodedata.category(text[at]) in ("No", "Nl")]  # \u2460, \u2161
    for at in numerals or ([begin] if len(word) == 1 and unicodedata.numeric(word, None) is not None else []):
        yield at, at + 1, "numeral", int(unicodedata.numeric(text[at]))
    if numerals or text[max(0, begin - 1) : begin].isalnum() or text[end : end + 1].isalnum():
        return
    if len(word) > 2 and word[-2].islower() and word[-1].isupper():
        begin, word = end - 1, word[-1]  # ``A`` is the counter in ``DocA``
    for kind, value in VALUES.get(word.lower(), ()):
        yield begin, end, kind, value


def _cut(text: str, candidate: Candidate, opens: bool) -> CharSpan:
    """Return the number's span with brackets, field name, total and space. If it ``opens`` a line, add punctuation."""
    (begin, end), (low, high) = candidate.span, candidate.region
    if total := TOTAL.match(text, end, high):
        end = total.end()
    line = text[low:begin]
    quote = 1 if line[-1:] in ("'", '"') and text[end : end + 1] == line[-1:] else 0
    if pair := JSON_FIELD.search(line[-FIELD:]):
        begin, end = begin - len(pair[0]), end + quote
        if comma := re.compile(r"\s*,\s*").match(text, end, high):
            return begin, comma.end()
        ahead = re.search(r"\s*,\s*\Z", text[low:begin])
        return begin - (len(ahead[0]) if ahead else 0), end
    if name := ATTRIBUTE.search(line[-FIELD:]):
        begin, end = begin - len(name[0]), end + quote
    elif line and BRACKETS.get(line[-1]) == text[end : end + 1]:
        begin, end = begin - 1, end + 1
    elif line.endswith("#") or (OPEN_TAG.search(line) and line[-1:] in "-_"):
        begin -= 1
    if opens:
        while end < high and text[end] in " \t:.)]":
            end += 1
    elif begin > low and text[begin - 1] == " " and text[end : end + 1] not in ("(", "["):
        begin -= 1
    elif name and text[end : end + 1] == " ":
        end += 1
    return begin, end


def _alike(char: str) -> str:
    """Return a character to compare. White space and no character are equal, and so are all quotation marks."""
    return (char.strip() or " ").replace("'", '"')


Series = Sequence[Candidate]  # one candidate for each document


def has_numbering(text: str, spans: Sequence[CharSpan]) -> bool:
    """Whether headers, footers, tags, attributes or fields number the documents.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters, as in ``Boundaries.spans``.
    """
    return find_numbering(text, spans).seen


def strip_numbering(text: str, spans: Sequence[CharSpan]) -> tuple[str, list[CharSpan]]:
    """Cut out the Arabic numbers that certainly belong to the template.

    References to a number, as in the question, stay. ``has_numbering`` reports whether the result still has numbers.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters, as in ``Boundaries.spans``.

    Returns:
        the prompt without the numbers, and the spans of the documents in it.
    """
    return find_numbering(text, spans).stripped(text, spans)


def find_numbering(text: str, spans: Sequence[CharSpan], metadata: Sequence[Collection[str]] = ()) -> DocumentNumbers:
    """Return the numbers of the documents at these spans, which may include headers.

    ``metadata`` lists the values of each document's metadata; numbers in these values belong to the document.
    """
    if len(spans) < 2:
        return DocumentNumbers()
    values = metadata or [()] * len(spans)
    cuts: dict[CharSpan, int] = {}
    taken: set[CharSpan] = set()
    before, after = _around(text, spans)
    everywhere = [before, after, *_in_headers(text, spans)]
    for regions in everywhere:
        for series in regions.certain(taken):
            if not all(_is_own(text, candidate, values[index]) for index, candidate in enumerate(series)):
                taken.update(candidate.span for candidate in series)
                opens = all(candidate.opens for candidate in regions.without_edge(series))
                cuts |= {_cut(text, candidate, opens): index for index, candidate in enumerate(series)}
    beginnings = _Regions(text, [(begin, min(end, begin + INSIDE)) for begin, end in spans[:MAX_COMPARED]])
    headings = filter(_is_heading, beginnings.by_position(taken))
    doubtful = any(
        not all(_is_own(text, candidate, values[i]) for i, candidate in enumerate(series)) or _from_first(series)
        for found in (*(regions.by_position(taken) for regions in everywhere), headings)
        for series in found
    )
    return DocumentNumbers(tuple(_apart(cuts)), doubtful or _counts_between(before, after, taken))


class _Regions:
    """Regions of a prompt, one for each document. The region at index ``edge`` also contains other text."""

    def __init__(self, text: str, spans: Sequence[CharSpan], edge: int | None = None) -> None:
        self.spans, self.edge = spans, edge
        self.groups: list[dict[tuple[str, ...], dict[int, list[Candidate]]]] = [{}, {}]
        for index, span in enumerate(spans):
            for candidate in _candidates_in(text, span):
                if index >= MAX_COMPARED and candidate.kind != "figure":
                    continue
                keys = [candidate.keys()]
                opening = candidate._replace(line=re.split(r"[\s>:\[({]", candidate.line)[-1])
                if index == edge == 0 and opening.keys() != keys[0] and not opening.line[-1:].isalnum():
                    keys.append(opening.keys())  # in ``Context: 1. ...`` only the first number does not begin its line
                for both in keys:
                    for group, key in zip(self.groups, both, strict=True):
                        group.setdefault(key, {}).setdefault(index, []).append(candidate)

    def filled(self, exact: bool, count: int) -> Iterator[tuple[tuple[str, ...], list[list[Candidate]]]]:
        """Yield each key with its candidates in the first ``count`` regions, if at most one region has no candidate."""
        for key, found in self.groups[not exact].items():
            by_region = [found.get(index, []) for index in range(count)]
            if by_region.count([]) <= 1:
                yield key, by_region

    def without_edge(self, series: Series) -> Series:
        return [candidate for index, candidate in enumerate(series) if index != self.edge]

    def certain(self, taken: AbstractSet[CharSpan]) -> Iterator[Series]:
        """Yield the series of numbers that certainly belong to the template."""
        for exact in (True, False):
            for key, by_region in self.filled(exact, len(self.spans)):
                for series in self._aligned(by_region) if key[0] == "figure" else ():
                    if taken.isdisjoint(candidate.span for candidate in series) and self._is_certain(series, exact):
                        yield series

    def _aligned(self, by_region: Sequence[Sequence[Candidate]]) -> Iterator[Series]:
        """Yield series of one candidate per region, if all regions have equally many. The edge may have more."""
        inner = {len(region) for index, region in enumerate(by_region) if index != self.edge}
        count = inner.pop()
        if not inner and all(len(region) >= count for region in by_region):
            equal = [region[:count] if i else region[len(region) - count :] for i, region in enumerate(by_region)]
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

    def by_position(self, taken: Collection[CharSpan]) -> Iterator[Series]:
        """Yield all series whose values rise or fall with the position of the document."""
        for exact in (True, False):
            for _, by_region in self.filled(exact, min(len(self.spans), MAX_COMPARED)):
                yield from _counting(_without(taken, by_region), exact)


def _around(text: str, spans: Sequence[CharSpan]) -> tuple[_Regions, _Regions]:
    """Return the regions before each document and the regions after each document."""
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


def _in_headers(text: str, spans: Sequence[CharSpan]) -> list[_Regions]:
    """Return regions in the spans: headers or tags at the beginning, possibly below metadata, and closing tags."""
    headers = [_header(text, *span) for span in spans]
    tags = [CLOSING_TAG.search(text, max(begin, end - MAX_TAG), end) for begin, end in spans]
    found = [headers, [tag and tag.span() for tag in tags]]
    return [_Regions(text, [span for span in some if span]) for some in found if all(some)]


def _header(text: str, begin: int, end: int) -> CharSpan | None:
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
    """Whether the number is part of a value of the document's metadata."""
    begin, end = candidate.span
    return any(
        text.find(value, max(0, end - len(value)), begin + len(value)) >= 0
        for value in values
        if len(value) >= end - begin
    )


def _is_heading(series: Series) -> bool:
    """Whether these numbers are in headings, which usually belong to the documents."""
    few = len(series) == 2 and {candidate.value for candidate in series} not in ({0, 1}, {1, 2})
    alike = len({candidate.line for candidate in series}) == 1
    return alike and not few and all(OWN_HEADING.match(candidate.after) for candidate in series)


def _from_first(series: Series) -> bool:
    """Whether the series consists of the figures 0, 1, 2 or 1, 2, 3."""
    values = [candidate.value for candidate in series]
    return series[0].kind == "figure" and values[0] in (0, 1) and values == list(range(values[0], values[-1] + 1))


def _counts_between(before: _Regions, after: _Regions, taken: Collection[CharSpan]) -> bool:
    """Whether numbers occur only between the documents, not before the first or after the last."""
    for exact in (True, False):
        for key, by_region in before.filled(exact, min(len(before.spans), MAX_COMPARED)):
            inner = _without(taken, by_region[1:])
            beyond = by_region[0] or len(after.spans) - 1 in after.groups[not exact].get(key, ())
            if len(inner) > 1 and all(inner) and not beyond and any(True for _ in _counting(inner, exact)):
                return True
    return False


def _without(taken: Collection[CharSpan], by_region: Sequence[Series]) -> list[Series]:
    return [[candidate for candidate in region if candidate.span not in taken] for region in by_region]


def _counting(by_region: Sequence[Series], exact: bool) -> Iterator[Series]:
    """Yield one candidate per region such that the values form an arithmetic progression."""
    if len(by_region) == 2:
        yield from ([a, b] for a in by_region[0] for b in by_region[1] if _are_counted(a, b, exact))
    elif all(by_region):
        by_value = [{candidate.value: candidate for candidate in region} for region in by_region]
        for first in by_value[0]:
            for second in by_value[1]:
                step = second - first
                if step and all(first + index * step in values for index, values in enumerate(by_value)):
                    yield [values[first + index * step] for index, values in enumerate(by_value)]


def _may_count(low: int, high: int) -> bool:
    """Whether two numbers are likely to number documents. Any two form a progression, which proves nothing."""
    return high - low == 1 or low in (-1, 0, 1) or high == 2 * low


def _are_counted(left: Candidate, right: Candidate, exact: bool) -> bool:
    """Whether two candidates number two documents. ``exact``: the same word precedes both, not only one character."""
    low, high = sorted((left.value, right.value))
    glued = any(candidate.line[-1:].isalnum() for candidate in (left, right))
    if low == high or left.is_compound or right.is_compound or (glued and not exact):
        return False
    if left.kind != "figure":
        return (low, high) == (1, 2)
    alike = exact or (left.is_labelled and right.is_labelled)
    return _may_count(low, high) or (alike and -SMALL < low < high < SMALL)


def _apart(cuts: dict[CharSpan, int]) -> Iterator[tuple[CharSpan, int]]:
    """Yield the cuts in ascending order, without overlaps."""
    edge = 0
    for (begin, end), index in sorted(cuts.items()):
        if max(begin, edge) < end:
            yield (max(begin, edge), end), index
            edge = end
