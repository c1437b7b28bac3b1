"""Where a text stands in a prompt, as it is or as frameworks write it."""

from __future__ import annotations

import json
import os
import re
import string
import unicodedata
from dataclasses import dataclass

from ragbias.boundaries.spans import Span

MAX_OCCURRENCES = 512
MESSAGE_BORDER = re.compile(r"<[|｜][^|｜>]*[|｜]>|</?(?:start|end)_of_turn>|\[/?INST\]|</?s>|\[/?TOOL_RESULTS\]")
NUMBER = re.compile(r"\d+")
ESCAPED_SPACE = re.compile(r"\\[nrt]")  # as in a printed list
LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, order=True)
class Hit:
    """A place in the prompt, ``text[begin:end]``, and the document that stands there."""

    begin: int
    end: int
    document: str

    def overlaps(self, other: Hit) -> bool:
        """Whether they share a character."""
        return self.begin < other.end and other.begin < self.end


def span_of(hit: Hit) -> Span:
    """Where the document stands."""
    return hit.begin, hit.end


def plain_forms(document: str) -> list[str]:
    """The text as it is and without the white space around it."""
    return list(dict.fromkeys(form for form in (document, document.strip()) if form.strip()))


def escaped_forms(document: str) -> list[str]:
    """The text as it stands inside a printed Python or JSON string, where that differs from the plain text.

    Every such form holds a backslash.
    """
    if document.isascii() and document.isprintable() and not any(mark in document for mark in "'\"\\"):
        return []
    stripped = document.strip()
    forms = [repr(document)[1:-1], repr(stripped)[1:-1]]
    forms += [json.dumps(stripped, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)]
    return [form for form in dict.fromkeys(forms) if "\\" in form and form not in (document, stripped)]


def forms(document: str, text: str) -> list[str]:
    """All forms in which the document could stand in ``text``, the most faithful first."""
    return plain_forms(document) + (escaped_forms(document) if "\\" in text else [])


def occurrences(text: str, document: str) -> list[Hit]:
    """All places where the document stands, in ascending order; escaped forms count only where no plain one stands."""
    hits = [hit for form in plain_forms(document) for hit in _find_all(text, form, document)]
    if not hits and "\\" in text:
        hits = [hit for form in escaped_forms(document) for hit in _find_all(text, form, document)]
    return sorted(set(hits))


def is_bounded(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` neither begins nor ends in the middle of a word or a number."""
    cuts_left = begin > 0 and text[begin - 1].isalnum() and text[begin].isalnum()
    return not cuts_left and not (end < len(text) and text[end].isalnum() and text[end - 1].isalnum())


def ends_block(text: str, hit: Hit) -> bool:
    """Whether the hit is followed by a line break, a quotation mark, a tag, or the end of the prompt."""
    return hit.end == len(text) or text[hit.end] in "\r\n\"'<[" or text[hit.end - 1] == "\n"


def is_block(text: str, hit: Hit) -> bool:
    """Whether the hit has its lines, or its quotation marks, to itself."""
    return ends_block(text, hit) and (hit.begin == 0 or text[hit.begin - 1] in "\n\"'")


def is_separator(gap: str) -> bool:
    """Whether a gap is nothing but a separator, numbering included."""
    return not LETTER.search(gap) and not MESSAGE_BORDER.search(gap)


def _find_all(text: str, form: str, document: str) -> list[Hit]:
    hits: list[Hit] = []
    begin = text.find(form)
    while begin >= 0 and len(hits) < MAX_OCCURRENCES:
        hits.append(Hit(begin, begin + len(form), document))
        begin = text.find(form, begin + 1)
    return hits


def common_prefix(*texts: str) -> str:
    """What all begin with."""
    return os.path.commonprefix(texts)  # noqa: RUF071 - by character is meant


def common_suffix(*texts: str) -> str:
    """What all end with."""
    return common_prefix(*(text[::-1] for text in texts))[::-1]


def holds_words(gap: str) -> bool:
    """Whether there is a letter, a digit or a sign such as a star: more than space, escaped too, and punctuation."""
    bare = ESCAPED_SPACE.sub("", gap)
    return any(unicodedata.category(sign)[0] in "LMNS" and sign not in string.punctuation for sign in bare)
