"""Find the occurrences of document texts in a prompt: verbatim, escaped or reformatted."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from ragbias.boundaries.text import (
    ESCAPED_SPACE,
    LABEL_END,
    LABEL_OR_TAG,
    NUMBER,
    OPENING,
    CharSpan,
    Margins,
    add_margins,
    common_prefix,
    gaps_between,
    is_separator,
    texts_outside,
)

MIN_CHARACTERS = 8  # shorter texts occur in too many prompts by chance
MAX_OCCURRENCES = 512  # maximum number of occurrences of one form of a text
MIN_PRESENT = 40  # minimum number of characters that remain of a truncated text
MAX_MARK = 8  # number of characters compared after a cut
MAX_ROLE = 16  # maximum length of a text that may be the name of a role
BLOCK_END = re.compile(r"[ \t]*(?:[\r\n]|\Z)|[\"'<\[]")

Rewrite = Callable[[str], str]
ESCAPES: tuple[Rewrite, ...] = (  # how Python and JSON print texts
    lambda text: repr(text)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)
READINGS: tuple[Rewrite, ...] = (  # functions that convert a document to a form that prompts may contain
    str,
    *ESCAPES,
    str.strip,
    *(lambda text, escape=escape: escape(text.strip()) for escape in ESCAPES),
)


@dataclass(frozen=True, order=True)
class Occurrence:
    """A document at ``text[begin:end]`` of a prompt, in characters.

    Attributes:
        readings: indices of the functions that produce this form of the document. The functions are ``READINGS``,
            followed by the rewrites of formatters.
        margins: whether the documents differ in leading or trailing white space.
    """

    begin: int
    end: int
    document: str
    readings: tuple[int, ...] = field(default=(), compare=False)
    margins: Margins = field(default=Margins(), compare=False)

    @property
    def span(self) -> CharSpan:
        """The span ``(begin, end)``, which also stores the margins."""
        return add_margins((self.begin, self.end), self.margins)

    def overlaps(self, spans: Sequence[CharSpan]) -> bool:
        """Whether the occurrence overlaps one of the spans, which are ascending and disjoint."""
        n_before = bisect_left(spans, self.end, key=lambda span: span[0])  # spans that begin before the occurrence ends
        return n_before > 0 and spans[n_before - 1][1] > self.begin


Occurrences = Mapping[str, list[Occurrence]]  # the occurrences of each document, the longest document first


def occurrences_by_document(text: str, documents: Iterable[str], strict: bool = False) -> Occurrences:
    """Return the occurrences of each document that occurs in the prompt, the longest document first.

    ``strict`` excludes texts that a formatter changed, and occurrences that begin or end inside a word.
    """
    longest_first = sorted(set(documents), key=lambda document: (-len(document), document))
    occurrences = {document: occurrences_of(text, document) for document in longest_first}
    if strict:
        return filter_occurrences(occurrences, lambda occurrence: is_bounded(text, *occurrence.span))
    rewrites = _rewrites(text, occurrences)
    if rewrites:
        occurrences = {document: occurrences_of(text, document, rewrites) for document in longest_first}
    return {document: group for document, group in occurrences.items() if group}


def filter_occurrences(occurrences: Occurrences, condition: Callable[[Occurrence], bool]) -> Occurrences:
    """Return the occurrences that satisfy a condition. Leave out documents without such an occurrence."""
    filtered = {document: list(filter(condition, group)) for document, group in occurrences.items()}
    return {document: group for document, group in filtered.items() if group}


def occurrences_of(text: str, document: str, rewrites: Sequence[Rewrite] = ()) -> list[Occurrence]:
    """Return all occurrences of a document in ascending order, in any printed form.

    ``rewrites`` are functions that a formatter may have applied to the document. A document such as ``user`` is not
    found in a message header, which names the role.
    """
    readings: dict[str, tuple[int, ...]] = {}  # by printed form
    for index, write in enumerate((*READINGS, *rewrites)):
        form = write(document)
        readings[form] = (*readings.get(form, ()), index)
    occurrences: list[Occurrence] = []
    for form, indices in readings.items():
        if form.strip():
            begins = _find_all(text, form)
            occurrences += [Occurrence(begin, begin + len(form), document, indices) for begin in begins]
    occurrences.sort()
    if len(document) > MAX_ROLE or not occurrences:
        return occurrences
    headers = [match.span() for match in OPENING.finditer(text)]
    return [o for o in occurrences if not any(begin <= o.begin and o.end <= end for begin, end in headers)]


def outermost_occurrences(text: str, occurrences: Occurrences) -> list[Occurrence]:
    """Return the longest disjoint occurrences in order. Skip short documents that begin or end inside a word."""
    long = {document: group for document, group in occurrences.items() if is_long(document)}
    whole = {**long, **filter_occurrences(occurrences, lambda o: is_bounded(text, *o.span))}
    taken: list[CharSpan] = []
    outermost: list[Occurrence] = []
    every = chain.from_iterable(whole.values())
    for occurrence in sorted(every, key=lambda o: (o.begin - o.end, o.begin, o.document)):  # the longest first
        if not occurrence.overlaps(taken):
            insort(taken, (occurrence.begin, occurrence.end))
            outermost.append(occurrence)
    return sorted(outermost)


def count_outside(text: str, occurrences: Occurrences, spans: Sequence[CharSpan]) -> int:
    """Count the occurrences of long documents that overlap no span."""
    long = {document: group for document, group in occurrences.items() if is_long(document)}
    return sum(not occurrence.overlaps(spans) for occurrence in outermost_occurrences(text, long))


def is_long(document: str) -> bool:
    """Whether a text is too long to occur in a prompt by chance."""
    return len(document.strip()) >= MIN_CHARACTERS


def escaped_forms(stripped: str) -> list[str]:
    """Return the forms of a stripped text that Python and JSON print with additional backslashes."""
    if stripped.isascii() and stripped.isprintable() and not any(character in stripped for character in "'\"\\"):
        return []
    forms = {escape(stripped) for escape in ESCAPES}
    return [form for form in forms if "\\" in form and form != stripped]


def _find_all(text: str, form: str) -> list[int]:
    positions: list[int] = []
    begin = text.find(form)
    while begin >= 0 and len(positions) < MAX_OCCURRENCES:
        positions.append(begin)
        begin = text.find(form, begin + 1)
    return positions


def is_quoted(text: str, begin: int, end: int) -> bool:
    """Whether the same quotation mark precedes and follows ``text[begin:end]``."""
    return text[begin - 1 : begin] in ("'", '"') and text[begin - 1 : begin] == text[end : end + 1]


def fills_lines(text: str, begin: int, end: int) -> bool:
    """Whether the lines of ``text[begin:end]`` contain no other text."""
    ends_line = end == len(text) or text[end] in "\r\n" or text[end - 1] == "\n"
    return ends_line and (begin == 0 or text[begin - 1] == "\n")


def is_bounded(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` begins and ends at the borders of words and numbers."""
    cuts_left = begin > 0 and text[begin - 1].isalnum() and text[begin].isalnum()
    if cuts_left and not ESCAPED_SPACE.fullmatch(text, max(0, begin - 2), begin):
        return False
    cuts_right = end < len(text) and text[end].isalnum() and text[end - 1].isalnum()
    return not cuts_right


def is_uniform(text: str, spans: Sequence[CharSpan]) -> bool:
    """Whether the same separator is between all spans."""
    gaps = set(gaps_between(text, spans))
    return len(gaps) == 1 and all(map(is_separator, gaps))


def is_number(text: str, begin: int, end: int) -> bool:
    """Whether the number ``text[begin:end]`` is complete: no digit is adjacent to it."""
    return not text[max(0, begin - 1) : begin].isdigit() and not text[end : end + 1].isdigit()


def is_cut(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` seems cut off: a letter, a digit, or the same character adjoins an edge."""
    before, after = text[max(0, begin - 1) : begin], text[end : end + 1]
    return _continues(text[begin], before) or _continues(text[end - 1], after)


def _continues(inner: str, outer: str) -> bool:
    """Whether the text seems to continue from the character ``inner`` to the character ``outer``, which may be ""."""
    return not inner.isspace() and (outer.isalnum() or outer == inner)


def ends_block(text: str, end: int) -> bool:
    """Whether a line break, a quotation mark, a tag, or the end of the prompt follows ``text[:end]``."""
    return text[end - 1] == "\n" or BLOCK_END.match(text, end) is not None


def have_same_ends(text: str, spans: Sequence[CharSpan]) -> bool:
    """Whether the same text, such as ``(score: 0.9)``, follows all spans in their lines. Numbers may differ."""
    rests = [text[end:].partition("\n")[0] for _, end in spans]
    return len({NUMBER.sub("0", rest) for rest in rests}) == 1


def is_block(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` fills lines or a quotation. A label, tag, bullet or number may precede it."""
    line = text[text.rfind("\n", 0, begin) + 1 : begin]
    is_begin = is_separator(line) or line[-1] in "\"'" or LABEL_OR_TAG.search(line) is not None
    return is_begin and ends_block(text, end)


def precedes_other_blocks(text: str, spans: Sequence[CharSpan]) -> bool:
    """Whether the label, tag, bullet or number before each document also precedes other text in the prompt."""
    first_begin, first_end = spans[0]
    mark_end = len(text[:first_begin].rstrip())
    line_begin = text.rfind("\n", 0, mark_end) + 1
    if label := LABEL_OR_TAG.search(text, line_begin, mark_end):
        mark_begin = label.start()
        if label["label"]:
            mark = rf"^(?:[^\w\n]|\d)*{label['label']}{LABEL_END}"
        else:
            mark = rf"(?:^|>)[^\w\n<>]*{label['tag']}\b"
    elif line_begin == mark_end or "\n" in text[mark_end:first_begin]:
        return False
    else:
        bullet = NUMBER.sub(r"\\d+", re.escape(text[line_begin:mark_end].strip()))
        mark_begin = line_begin
        mark = rf"^[ \t]*{bullet}[ \t]"
    marks = re.compile(mark, re.MULTILINE | re.IGNORECASE)
    before, *gaps, after = texts_outside(text, [(mark_begin, first_end), *spans[1:]])
    n_in_gaps = [len(marks.findall(gap)) for gap in gaps]
    n_elsewhere = len(marks.findall(before)) + len(marks.findall(after))
    return all(n_in_gaps) and n_elsewhere + sum(n_in_gaps) > len(gaps)


def _rewrites(text: str, unchanged: Occurrences) -> list[Rewrite]:
    """Return functions that a formatter may have applied to all documents. Return none if all are unchanged."""
    missing = [document for document, occurrences in unchanged.items() if not occurrences]
    if not missing:
        return []
    rewrites: list[Rewrite] = [lambda text: text.replace("\n", " ").strip(), lambda text: " ".join(text.split())]
    longest_found = max((len(document) for document in unchanged if document not in missing), default=0)
    length = _cut_length(text, missing)
    if length and length >= longest_found:
        rewrites.append(lambda text: text[:length])
    return rewrites


class _Beginning(NamedTuple):
    """The first ``length`` characters of a document, at ``position`` in a prompt."""

    document: str
    position: int
    length: int


def _cut_length(text: str, documents: Sequence[str]) -> int:
    """Return the number of characters to which a formatter cut the documents, or 0 if this is uncertain.

    The number is uncertain if fewer than two documents are cut, or if different texts follow the cuts. This
    happens, for example, if the formatter cuts only between words, because the documents then have different lengths.
    """
    beginnings = [beginning for document in documents for beginning in _find_beginnings(text, document)]
    if len({beginning.document for beginning in beginnings}) < 2:
        return 0
    length = min(beginning.length for beginning in beginnings)
    marks: dict[str, set[str]] = {}  # what follows each cut, such as ``...``, by document
    for beginning in beginnings:
        marks.setdefault(beginning.document, set()).add(_mark_at(text, beginning.position + length))
    certain = {_mark_at(text, beginning.position + length) for beginning in beginnings if beginning.length == length}
    return length if all(certain & of_document for of_document in marks.values()) else 0


def _find_beginnings(text: str, document: str) -> Iterator[_Beginning]:
    """Yield each place where the document's first ``MIN_PRESENT`` or more characters occur in the prompt."""
    position = text.find(document[:MIN_PRESENT]) if len(document) > MIN_PRESENT else -1
    while position >= 0:
        length = len(common_prefix(document, text[position : position + len(document)]))
        yield _Beginning(document, position, length)
        position = text.find(document[:MIN_PRESENT], position + length)


def _mark_at(text: str, position: int) -> str:
    """Return the equal characters that begin at a position in the prompt, such as ``...``."""
    after = text[position : position + MAX_MARK]
    return after[: len(after) - len(after.lstrip(after[:1]))].strip()


def count_absent(text: str, documents: Collection[str], spans: Sequence[CharSpan]) -> int:
    """Count the documents that are missing from the text outside ``spans``.

    A document is missing if that text contains neither the whole document nor ``MIN_PRESENT`` consecutive characters
    of it.
    """
    if not documents:
        return 0
    prompt = _normalise("\0".join(texts_outside(text, spans)))
    pieces = _pieces(prompt)
    searched = map(_normalise, documents)
    return sum(document not in prompt and pieces.isdisjoint(_pieces(document)) for document in searched)


def _normalise(text: str) -> str:
    """Remove differences in white space and case, which a formatter may have changed."""
    return " ".join(text.split()).casefold()


def _pieces(text: str) -> set[str]:
    return {text[begin : begin + MIN_PRESENT] for begin in range(len(text) - MIN_PRESENT + 1)}
