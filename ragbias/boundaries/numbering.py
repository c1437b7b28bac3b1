"""Find document numbers, which reveal the order of the documents to the model.

Arabic numbers that count from 0 or 1 belong to the template, so they can be removed. The numbers may be in any order,
so the result does not depend on the order of the documents. Other counters, such as letters, number words, or the
numbers in ``Apollo 11`` and ``Apollo 12``, may belong to the documents. These counters are never removed, but are
reported if they change by the same step from document to document.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from ragbias.boundaries.splitting import DocumentNumbers
from ragbias.boundaries.text import DOCUMENT_LABEL, NUMBER, NUMBERED_HEADER, CharSpan, message_around

REACH = 1000  # characters around a document that are searched for its number
INSIDE = 300  # characters at the beginning of a document that are searched for its number
MAX_TAG = 48  # characters at the end of a document that are searched for a closing tag
MAX_COMPARED = 20  # maximum number of documents whose uncertain counters are compared
FIELD_LINE = r"(?:[^\W\d][\w .-]{0,40}:[ \t].*|[ \t]*)\n"  # a line of metadata, or a blank line
HEADER_OR_TAG = re.compile(rf"(?:{FIELD_LINE})*?(?P<whole>{NUMBERED_HEADER.pattern}|<\w[^<>\n]*>)", re.VERBOSE)
CLOSING_TAG = re.compile(r"</\w[^<>\n]*>\s*\Z")
HEADING_END = re.compile(r"[:.)\]}>\"'/|\n](?!\w)|\Z")  # follows the number in a heading, but not in ``1.txt``
WORDS = {  # counters that are reported but never removed
    "letter": "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "roman": "i ii iii iv v vi vii viii ix x xi xii xiii xiv xv xvi xvii xviii xix xx",
    "word": "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty",
}
VALUES: dict[str, list[tuple[str, int]]] = {}
for _kind, _words in WORDS.items():
    for _value, _word in enumerate(_words.split(), 1):
        VALUES.setdefault(_word, []).append((_kind, _value))
COUNTER = re.compile(r"(?:(?<![\w)\]}.-])-)?(?<!\d)\d{1,12}(?!\d)(?:(?:st|nd|rd|th)(?![^\W_]))?|[^\W\d_]+")
MAX_BEFORE, MAX_AFTER = 24, 12  # characters that are compared before and after a number
LAST_WORD = re.compile(r"[^\w\s]{0,2}\w*\W{0,3}\Z")
GLUED_LABEL = re.compile(rf"(?:^|[\W_]){DOCUMENT_LABEL}\Z")  # as in ``Doc1``
FIELD = 48  # characters before a number that are searched for a field name
OPEN_TAG = re.compile(r"</?[^\W\d][\w-]*\Z")
TOTAL = re.compile(r"\s*(?:/|of|out of)\s*(\d{1,4})(?![\d/]|[.-]\d)")
ATTRIBUTE = re.compile(r"[\w.-]+=[\"']?\Z")
COMMA = re.compile(r"\s*,\s*")
JSON_FIELD = re.compile(r"([\"'])[\w .-]+\1[ ]?:[ ]?[\"']?\Z")
PAGE = re.compile(r"\bpage(?:[ _]?(?:label|number))?\W{1,4}\Z", re.IGNORECASE)
BRACKETS = {"[": "]", "(": ")", "{": "}"}


Key = tuple[str, ...]  # "word" or "character", and the kind and the surroundings of a candidate


class Candidate(NamedTuple):
    """``text[begin:end]``, which may be the number of a document. Only candidates of the same ``kind`` are compared."""

    document: int  # index of the document
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
    def may_be_content(self) -> bool:
        """Whether the candidate may be content of the document: part of a word, a date or a decimal number."""
        ends_value = re.search(r"\d[.,:/-]\Z", self.line)
        begins_value = re.match(r"[.,:/-]\d", self.after) and not TOTAL.match(self.after)
        if ends_value or begins_value:
            return True
        if OPEN_TAG.search(self.line) and re.match(r"[\s/>]", self.after):
            return False
        is_glued = self.line[-1:].isalnum() and not GLUED_LABEL.search(self.line)
        return self.after[:1].isalnum() or is_glued

    def keys(self) -> list[Key]:
        """Return two keys to group candidates: by the preceding word, and by the preceding character."""
        word = (OPEN_TAG.findall(self.line) or LAST_WORD.findall(self.line))[0]  # may be empty or white space
        character = self.line[-1:].strip(":>|; \t")  # not the end of a label or item, as in ``1. ...|2. ...``
        after = _normalise(self.after[:1])
        words = ("word", self.kind, _normalise(word.strip().lower()), after)
        return [words, ("character", self.kind, _normalise(character), after)]


def _candidates_in(text: str, region: CharSpan, index: int) -> Iterator[Candidate]:
    first, last = region
    part = text[first:last]
    for match in COUNTER.finditer(part):
        for begin, end, kind, value in _counters(part, *match.span()):
            before = part[max(0, begin - MAX_BEFORE) : begin].rpartition("\n")[2]
            after = part[end : end + MAX_AFTER]
            yield Candidate(index, first + begin, first + end, kind, value, before, after, region)


def _counters(text: str, begin: int, end: int) -> Iterator[tuple[int, int, str, int]]:
    word = text[begin:end]
    if any(map(str.isdecimal, word)):
        yield begin, end, "figure", int(word.rstrip("stndrh"))
        return
    numerals = [i for i in range(begin, end) if unicodedata.category(text[i]) in ("No", "Nl")]  # \u2460, \u2161
    is_numeral = len(word) == 1 and unicodedata.numeric(word, None) is not None  # such as \u4e00
    indices = [begin] if is_numeral else numerals
    for i in indices:
        yield i, i + 1, "numeral", int(unicodedata.numeric(text[i]))
    if numerals or text[max(0, begin - 1) : begin].isalnum() or text[end : end + 1].isalnum():
        return
    if len(word) > 2 and word[-2].islower() and word[-1].isupper():
        begin, word = end - 1, word[-1]  # ``A`` is the counter in ``DocA``
    for kind, value in VALUES.get(word.lower(), ()):
        yield begin, end, kind, value


def _span_to_cut(text: str, candidate: Candidate, begins_line: bool) -> CharSpan:
    """Return the span to remove: a number with its brackets, field name, total (``of 5``) and space.

    If the number begins its line, the span includes the punctuation after the number.
    """
    (begin, end), (low, high) = candidate.span, candidate.region
    if total := TOTAL.match(text, end, high):
        end = total.end()
    line = text[low:begin]
    quote = 1 if line[-1:] in ("'", '"') and text[end : end + 1] == line[-1:] else 0
    if pair := JSON_FIELD.search(line[-FIELD:]):
        return _extend_to_comma(text, candidate.region, begin - len(pair[0]), end + quote)
    name = ATTRIBUTE.search(line[-FIELD:])
    if name:
        begin, end = begin - len(name[0]), end + quote
    elif line and BRACKETS.get(line[-1]) == text[end : end + 1]:
        begin, end = begin - 1, end + 1
    elif line.endswith("#") or (OPEN_TAG.search(line) and line[-1:] in "-_"):
        begin -= 1
    if begins_line:
        while end < high and text[end] in " \t:.)]":
            end += 1
    elif begin > low and text[begin - 1] == " " and text[end : end + 1] not in ("(", "["):
        begin -= 1
    elif name and text[end : end + 1] == " ":
        end += 1
    return begin, end


def _extend_to_comma(text: str, region: CharSpan, begin: int, end: int) -> CharSpan:
    """Extend the span of a JSON field to the comma after it. If there is none, extend it to the comma before it."""
    low, high = region
    if comma_after := COMMA.match(text, end, high):
        return begin, comma_after.end()
    if comma_before := re.search(rf"{COMMA.pattern}\Z", text[low:begin]):
        return low + comma_before.start(), end
    return begin, end


def _normalise(part: str) -> str:
    """Map white space and the empty string to a space, and single to double quotation marks."""
    return (part if part.strip() else " ").replace("'", '"')


Series = Sequence[Candidate]  # one candidate for each document


def find_numbering(
    text: str,
    spans: Sequence[CharSpan],
    metadata: Sequence[Collection[str]] = (),
    blocks: Sequence[CharSpan] = (),
) -> DocumentNumbers:
    """Return the numbers of the documents at ``spans``. The spans may include headers.

    ``metadata`` lists the metadata values of each document. Numbers inside these values are ignored. References to a
    document's number, for example in the question, are also ignored. ``blocks`` are the spans extended to the metadata.
    A number inside a block cannot belong to a neighbouring document.
    """
    if len(spans) < 2:
        return DocumentNumbers()
    values = metadata or [()] * len(spans)
    cuts: set[CharSpan] = set()
    taken: set[CharSpan] = set()
    before, after = _regions_around(text, spans, blocks or spans)
    inside = _regions_in_headers(text, spans)
    for exact, regions in itertools.product((True, False), (after, before, *inside)):
        for series in regions.certain_series(exact, taken):
            if _belong_to_metadata(text, series, values):
                continue
            begins_line = regions.begin_lines(series)
            cuts.update(_span_to_cut(text, candidate, begins_line) for candidate in series)
            taken.update(candidate.span for candidate in series)  # they are not part of the next document's header
    beginnings = _Regions(text, [(begin, min(end, begin + INSIDE)) for begin, end in spans[:MAX_COMPARED]])
    counted = [before.even_series(taken, after), *(regions.even_series(taken) for regions in (after, *inside))]
    others = itertools.chain(*counted, beginnings.heading_series(taken))
    doubtful = any(_may_number_documents(text, series, values) for series in others)
    return DocumentNumbers(tuple(_make_disjoint(cuts)), doubtful)


def _may_number_documents(text: str, series: Series, values: Sequence[Collection[str]]) -> bool:
    """Whether a series is not metadata, or counts from 0 or 1 and is not page numbers."""
    if _is_consecutive(series) and not all(map(_is_page, series)):
        return True
    return not _belong_to_metadata(text, series, values)


def _is_page(candidate: Candidate) -> bool:
    return PAGE.search(candidate.line) is not None


def _is_consecutive(series: Series) -> bool:
    """Whether the numbers count from 0 or 1 without gaps, in any order."""
    values = sorted(candidate.value for candidate in series)
    low = values[0]
    return series[0].kind == "figure" and low in (0, 1) and values == list(range(low, low + len(values)))


class _Regions:
    """Regions that may contain the documents' numbers, one region per document.

    ``edge`` is the index of a region that may also contain other text, such as the question.
    """

    def __init__(self, text: str, spans: Sequence[CharSpan], edge: int | None = None) -> None:
        self.text = text
        self.spans = spans
        self.edge = edge
        self.groups: dict[Key, dict[int, list[Candidate]]] = {}  # candidates by key and document
        for index, span in enumerate(spans):
            for candidate in _candidates_in(text, span, index):
                if index >= MAX_COMPARED and candidate.kind != "figure":
                    continue
                keys = candidate.keys()
                # other text, but not a word, may precede the first header in its line
                if index == edge == 0 and not candidate.line.rstrip()[-1:].isalnum():
                    keys += candidate._replace(line="").keys()[:1]
                for key in dict.fromkeys(keys):
                    self.groups.setdefault(key, {}).setdefault(index, []).append(candidate)

    def without_edge(self, series: Series) -> Series:
        return [candidate for candidate in series if candidate.document != self.edge]

    def begin_lines(self, series: Series) -> bool:
        """Whether the numbers begin their lines, perhaps after a bracket. The edge region does not count."""
        inner = self.without_edge(series)
        if self.edge and not all("\n" in self.lead(candidate) for candidate in inner):
            return False
        return not any(candidate.line.rstrip("([{#").strip() for candidate in inner)

    def lead(self, candidate: Candidate) -> str:
        return self.text[candidate.region[0] : candidate.begin]

    def tail(self, candidate: Candidate) -> str:
        return self.text[candidate.end : candidate.region[1]]

    def certain_series(self, exact: bool, taken: AbstractSet[CharSpan]) -> Iterator[Series]:
        """Yield series of numbers that belong to the template. ``exact`` requires the same word before all numbers."""
        level = "word" if exact else "character"
        for key, found in self.groups.items():
            if key[:2] != (level, "figure") or len(found) < len(self.spans):
                continue
            for series in self._aligned_series([found[index] for index in range(len(found))]):
                is_free = taken.isdisjoint(candidate.span for candidate in series)
                if is_free and _is_consecutive(series) and not self._may_be_other_text(series, exact):
                    yield series

    def _may_be_other_text(self, series: Series, exact: bool) -> bool:
        """Whether the numbers may be content of the documents, or other text in the ``edge`` region."""
        inner = self.without_edge(series)
        totals = [TOTAL.match(candidate.after) for candidate in series]
        n_totals = len({total[1] if total else "" for total in totals})
        if n_totals > 1 or any(candidate.may_be_content for candidate in inner):
            return True
        if self.edge == 0:  # in the text before the documents, only a number near the first document counts
            lines = [self.tail(candidate).count("\n") for candidate in series]
            return lines[0] not in lines[1:]
        if self.edge is None:
            return False
        if all("\n" in self.lead(candidate) and "\n" not in self.tail(candidate) for candidate in inner):
            return True  # the numbers precede the next document in its line, so the last one follows no document
        return len(set(map(self.lead, series))) > 1 and not exact  # the last number may be part of the question

    def _aligned_series(self, by_region: Sequence[Sequence[Candidate]]) -> Iterator[Series]:
        """Yield the first candidates of all regions as a series, then the second ones, and so on.

        If regions have different numbers of candidates, there is no series. Only the ``edge`` region may have more:
        then its candidates nearest to the documents are used.
        """
        counts = {len(region) for index, region in enumerate(by_region) if index != self.edge}
        count = min(counts)
        if len(counts) > 1 or any(len(region) < count for region in by_region):
            return
        first, *others = by_region
        if self.edge == 0:  # prefer a number with the same text after it as the other numbers
            tails = {NUMBER.sub("0", self.tail(candidate)) for region in others for candidate in region}
            alike = [candidate for candidate in first if NUMBER.sub("0", self.tail(candidate)) in tails]
            first = alike if len(alike) >= count else first
        yield from zip(first[-count:], *(region[:count] for region in others), strict=True)

    def even_series(self, taken: Collection[CharSpan], after: _Regions | None = None) -> Iterator[Series]:
        """Yield series whose values change by the same step from document to document.

        Skip numbers at ``taken`` spans. ``after`` are the regions after the documents. If they are given, also
        yield series of numbers that are only between documents.
        """
        for key, found in self.groups.items():
            if key[0] != "character":
                continue
            between = after and self.edge not in found and after.edge not in after.groups.get(key, ())
            indices = range(1 if between else 0, min(len(self.spans), MAX_COMPARED))
            by_value = [_by_value(found.get(index, ()), taken) for index in indices]
            constant = len(by_value) == 2 and by_value[0].keys() == by_value[1].keys()
            if len(by_value) > 1 and all(by_value) and not constant:
                yield from _arithmetic_progressions(by_value)

    def heading_series(self, taken: Collection[CharSpan]) -> Iterator[Series]:
        """Yield series of numbers in headings, such as ``Chapter 1``. A series of two numbers must start at 0 or 1."""
        for series in self.even_series(taken):
            few = len(series) == 2 and {candidate.value for candidate in series} not in ({0, 1}, {1, 2})
            alike = len({candidate.line for candidate in series}) == 1
            if alike and not few and all(HEADING_END.match(candidate.after) for candidate in series):
                yield series


def _by_value(candidates: Iterable[Candidate], taken: Collection[CharSpan]) -> dict[int, Candidate]:
    """Return the candidates outside ``taken`` spans by value. Of equal values, prefer the last that is no page."""
    free = [candidate for candidate in candidates if candidate.span not in taken]
    pages_first = sorted(free, key=_is_page, reverse=True)
    return {candidate.value: candidate for candidate in pages_first}


def _arithmetic_progressions(by_value: Sequence[Mapping[int, Candidate]]) -> Iterator[Series]:
    """Yield series whose values change by the same step, which is not 0. ``by_value`` has one mapping per document."""
    for first, second in itertools.product(*by_value[:2]):
        step = second - first
        wanted = [first + step * index for index in range(len(by_value))]
        pairs = list(zip(wanted, by_value, strict=True))
        if step and all(value in candidates for value, candidates in pairs):
            yield [candidates[value] for value, candidates in pairs]


def _regions_around(text: str, spans: Sequence[CharSpan], blocks: Sequence[CharSpan]) -> tuple[_Regions, _Regions]:
    """Return the regions before and after the documents, without the blocks of neighbouring documents."""
    begins, ends = zip(*spans, strict=True)
    block_begins, block_ends = zip(*blocks, strict=True)
    message_begin, message_end = message_around(text, begins[0], ends[-1])
    before = [(max(low, end - REACH), end) for low, end in zip([message_begin, *block_ends], begins, strict=False)]
    limits = [*block_begins[1:], message_end]
    after = [(begin, min(limit, begin + REACH)) for begin, limit in zip(ends, limits, strict=True)]
    return _Regions(text, before, 0), _Regions(text, after, len(spans) - 1)


def _regions_in_headers(text: str, spans: Sequence[CharSpan]) -> list[_Regions]:
    """Return two kinds of regions inside the documents: their headers or opening tags, and their closing tags."""
    headers = [HEADER_OR_TAG.match(text, begin, min(end, begin + REACH)) for begin, end in spans]
    tags = [CLOSING_TAG.search(text, max(begin, end - MAX_TAG), end) for begin, end in spans]
    spans_of_headers = [header.span("whole") for header in headers if header]
    spans_of_tags = [tag.span() for tag in tags if tag]
    return [_Regions(text, each) for each in (spans_of_headers, spans_of_tags) if len(each) == len(spans)]


def _belong_to_metadata(text: str, series: Series, values: Sequence[Collection[str]]) -> bool:
    """Whether the numbers of a series belong to metadata. ``values`` are the metadata values of each document.

    They belong to metadata if one number is part of a longer value, or if every number is a complete value. If only
    some numbers are complete values, this may be chance.
    """
    lengths = []
    for candidate in series:
        around = [value for value in values[candidate.document] if _contains(text, value, candidate)]
        lengths.append(max(map(len, around), default=0))
    longer = any(length > candidate.end - candidate.begin for length, candidate in zip(lengths, series, strict=True))
    return longer or all(lengths)


def _contains(text: str, value: str, candidate: Candidate) -> bool:
    """Whether the candidate is inside an occurrence of ``value`` in the text."""
    begin = max(0, candidate.end - len(value))
    return text.find(value, begin, candidate.begin + len(value)) >= 0


def _make_disjoint(spans: Collection[CharSpan]) -> Iterator[CharSpan]:
    edge = 0
    for begin, end in sorted(spans):
        if max(begin, edge) < end:
            yield max(begin, edge), end
            edge = end
