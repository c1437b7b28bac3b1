"""Occurrences of a document's text in a prompt, as it is or as frameworks print it."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ragbias.boundaries.matching.rewritten import Rewrite, rewrites
from ragbias.boundaries.patterns import ESCAPED_SPACE
from ragbias.boundaries.spans import Margins, Span, margin_span

MIN_CHARACTERS = 8  # shorter texts occur in too many prompts by chance
MAX_OCCURRENCES = 512  # of one form of a text


def _in_python(text: str) -> str:
    return repr(text)[1:-1]


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _in_unicode_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


ESCAPES: tuple[Callable[[str], str], ...] = (_in_python, _in_json, _in_unicode_json)
READINGS: tuple[Callable[[str], str], ...] = (  # how all documents of a prompt may be printed, the fullest first
    str,
    *ESCAPES,
    str.strip,
    *(lambda text, escape=escape: escape(text.strip()) for escape in ESCAPES),
)


@dataclass(frozen=True, order=True)
class Occurrence:
    """A document at ``text[begin:end]`` of a prompt, in characters.

    Attributes:
        readings: indices of ``READINGS``, those that print the document so.
        margins: whether the document and those with which it was found differ in their outer white space.
        doubtful: whether the document is so short that it may be elsewhere instead.
    """

    begin: int
    end: int
    document: str
    readings: tuple[int, ...] = field(default=(), compare=False)
    margins: Margins = field(default=Margins(), compare=False)
    doubtful: bool = field(default=False, compare=False)

    @property
    def span(self) -> Span:
        """``(begin, end)``."""
        return margin_span((self.begin, self.end), self.margins)

    def overlaps(self, other: Occurrence) -> bool:
        """Whether they share a character."""
        return self.begin < other.end and other.begin < self.end

    def is_in(self, spans: Sequence[Span]) -> bool:
        """Whether it shares a character with one of the spans, which are ascending and apart."""
        last = bisect_left(spans, self.end, key=lambda span: span[0]) - 1
        return last >= 0 and spans[last][1] > self.begin

    def contains(self, other: Occurrence) -> bool:
        """Whether all characters of the other are of this one as well."""
        return self.begin <= other.begin and other.end <= self.end


def occurrences_by_document(text: str, documents: Iterable[str], strict: bool = False) -> dict[str, list[Occurrence]]:
    """The occurrences of each document that occurs, the longest document first.

    ``strict`` takes only those that neither begin nor end within a word, of texts that were not rewritten.
    """
    longest_first = sorted(set(documents), key=lambda document: (-len(document), document))
    found = _found(text, longest_first, strict)
    changes = [] if strict else rewrites(text, longest_first, found)
    return _found(text, longest_first, strict, changes) if changes else found


def _found(
    text: str, documents: Iterable[str], strict: bool, changes: Sequence[Rewrite] = ()
) -> dict[str, list[Occurrence]]:
    found: dict[str, list[Occurrence]] = {}
    for document in documents:
        occurrences = occurrences_of(text, document, changes)
        if strict:
            occurrences = [each for each in occurrences if is_bounded(text, each.begin, each.end)]
        if occurrences:
            found[document] = occurrences
    return found


def occurrences_of(text: str, document: str, changes: Sequence[Rewrite] = ()) -> list[Occurrence]:
    """All occurrences of a document in each of its forms, also rewritten, in ascending order.

    The rewrites follow those of ``READINGS`` in the count of ``readings``.
    """
    return sorted(
        Occurrence(begin, begin + len(form), document, readings)
        for form, readings in _forms(document, text, changes).items()
        for begin in _find_all(text, form)
    )


def _forms(document: str, text: str, changes: Sequence[Rewrite]) -> dict[str, tuple[int, ...]]:
    """The forms in which the document may occur in ``text``, each with the readings that print it so."""
    if "\\" not in text or not _changes_in_print(document):
        written = [document] * (1 + len(ESCAPES)) + [document.strip()] * (1 + len(ESCAPES))
    else:
        written = [write(document) for write in READINGS]
    forms: dict[str, tuple[int, ...]] = {}
    for index, form in enumerate([*written, *(change(document) for change in changes)]):
        forms[form] = (*forms.get(form, ()), index)
    return {form: readings for form, readings in forms.items() if form.strip()}


def escaped_forms(stripped: str) -> list[str]:
    """A text without outer white space as it is inside a printed Python or JSON string, where that adds a backslash."""
    forms = dict.fromkeys(escape(stripped) for escape in ESCAPES) if _changes_in_print(stripped) else ()
    return [form for form in forms if "\\" in form and form != stripped]


def is_quoted(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` is all that is between two quotation marks of one kind."""
    return text[begin - 1 : begin] in ("'", '"') and text[begin - 1 : begin] == text[end : end + 1]


def is_tagged(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` is all that is between two tags, white space apart."""
    while begin > 0 and text[begin - 1].isspace():
        begin -= 1
    while text[end : end + 1].isspace():
        end += 1
    return text[begin - 1 : begin] == ">" and text[end : end + 1] == "<"


def is_alone(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` is quoted, or has its lines to itself."""
    ends_line = end == len(text) or text[end] in "\r\n" or text[end - 1] == "\n"
    return is_quoted(text, begin, end) or (ends_line and (begin == 0 or text[begin - 1] == "\n"))


def is_bounded(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` neither begins nor ends in the middle of a word or a number; an escaped line break
    is no letter."""
    cuts_left = begin > 0 and text[begin - 1].isalnum() and text[begin].isalnum()
    cuts_left = cuts_left and not ESCAPED_SPACE.fullmatch(text, max(0, begin - 2), begin)
    return not cuts_left and not (end < len(text) and text[end].isalnum() and text[end - 1].isalnum())


def is_number(text: str, begin: int, end: int) -> bool:
    """Whether no digit is right beside ``text[begin:end]``."""
    return not text[max(0, begin - 1) : begin].isdigit() and not text[end : end + 1].isdigit()


def is_cut(text: str, begin: int, end: int) -> bool:
    """Whether a letter, a digit, or one more of the same character is right beside ``text[begin:end]``; white space of
    its own keeps it apart from them."""
    beside = ((text[begin - 1 : begin] if begin else "", text[begin]), (text[end : end + 1], text[end - 1]))
    return any(not inner.isspace() and (outer.isalnum() or outer == inner) for outer, inner in beside)


def ends_block(text: str, occurrence: Occurrence) -> bool:
    """Whether a line break, a quotation mark, a tag, or the end of the prompt follows."""
    end = occurrence.end
    return end == len(text) or text[end] in "\r\n\"'<[" or text[end - 1] == "\n"


def is_block(text: str, occurrence: Occurrence) -> bool:
    """Whether the occurrence has its lines, or its quotation marks, to itself."""
    return ends_block(text, occurrence) and (occurrence.begin == 0 or text[occurrence.begin - 1] in "\n\"'")


def _changes_in_print(document: str) -> bool:
    """Whether a printed list may hold the text in another form."""
    return not (document.isascii() and document.isprintable()) or any(each in document for each in "'\"\\")


def _find_all(text: str, form: str) -> list[int]:
    found: list[int] = []
    begin = text.find(form)
    while begin >= 0 and len(found) < MAX_OCCURRENCES:
        found.append(begin)
        begin = text.find(form, begin + 1)
    return found
