"""Where the text of a document occurs in a prompt, as it is or as frameworks print it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from ragbias.boundaries.spans import Span

MAX_OCCURRENCES = 512  # of one form of a text


@dataclass(frozen=True, order=True)
class Occurrence:
    """Where a document occurs in a prompt: ``text[begin:end]``, in characters."""

    begin: int
    end: int
    document: str

    @property
    def span(self) -> Span:
        """``(begin, end)``."""
        return self.begin, self.end

    def overlaps(self, other: Occurrence) -> bool:
        """Whether they share a character."""
        return self.begin < other.end and other.begin < self.end

    def contains(self, other: Occurrence) -> bool:
        """Whether all characters of the other are of this one as well."""
        return self.begin <= other.begin and other.end <= self.end


def occurrences_by_document(text: str, documents: Iterable[str], strict: bool = False) -> dict[str, list[Occurrence]]:
    """Where each document occurs, the longest document first; those that occur nowhere are left out.

    Args:
        text: the prompt.
        documents: their texts, repetitions allowed.
        strict: take only occurrences that neither begin nor end within a word.
    """
    found: dict[str, list[Occurrence]] = {}
    for document in sorted(set(documents), key=lambda document: (-len(document), document)):
        occurrences = occurrences_of(text, document)
        if strict:
            occurrences = [each for each in occurrences if is_bounded(text, each.begin, each.end)]
        if occurrences:
            found[document] = occurrences
    return found


def occurrences_of(text: str, document: str) -> list[Occurrence]:
    """All occurrences of a document, in ascending order; escaped forms count only where no plain one occurs."""
    found = [each for form in plain_forms(document) for each in _find_all(text, form, document)]
    if not found and "\\" in text:
        found = [each for form in escaped_forms(document) for each in _find_all(text, form, document)]
    return sorted(set(found))


def plain_forms(document: str) -> list[str]:
    """The text as it is and without the white space around it."""
    return list(dict.fromkeys(form for form in (document, document.strip()) if form.strip()))


def escaped_forms(document: str) -> list[str]:
    """The text as it is written inside a printed Python or JSON string, where that differs from the plain text.

    Every such form holds a backslash.
    """
    if document.isascii() and document.isprintable() and not any(each in document for each in "'\"\\"):
        return []
    stripped = document.strip()
    forms = [repr(document)[1:-1], repr(stripped)[1:-1]]
    forms += [json.dumps(stripped, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)]
    return [form for form in dict.fromkeys(forms) if "\\" in form and form not in (document, stripped)]


def is_bounded(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` neither begins nor ends in the middle of a word or a number."""
    cuts_left = begin > 0 and text[begin - 1].isalnum() and text[begin].isalnum()
    return not cuts_left and not (end < len(text) and text[end].isalnum() and text[end - 1].isalnum())


def ends_block(text: str, occurrence: Occurrence) -> bool:
    """Whether a line break, a quotation mark, a tag, or the end of the prompt follows."""
    end = occurrence.end
    return end == len(text) or text[end] in "\r\n\"'<[" or text[end - 1] == "\n"


def is_block(text: str, occurrence: Occurrence) -> bool:
    """Whether the occurrence has its lines, or its quotation marks, to itself."""
    return ends_block(text, occurrence) and (occurrence.begin == 0 or text[occurrence.begin - 1] in "\n\"'")


def _find_all(text: str, form: str, document: str) -> list[Occurrence]:
    found: list[Occurrence] = []
    begin = text.find(form)
    while begin >= 0 and len(found) < MAX_OCCURRENCES:
        found.append(Occurrence(begin, begin + len(form), document))
        begin = text.find(form, begin + 1)
    return found
