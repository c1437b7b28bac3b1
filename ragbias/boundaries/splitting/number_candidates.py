"""What may number a document, with what is around it: its label, its brackets, the line that it begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ragbias.boundaries.patterns import DOCUMENT_LABEL
from ragbias.boundaries.spans import Span
from ragbias.boundaries.splitting.counters import Counter, counters
from ragbias.boundaries.splitting.number_cuts import TAG, TOTAL

MAX_BEFORE, MAX_AFTER = 24, 12  # characters of its line before a number, and those after it, that are compared
LAST_WORD = re.compile(r"[^\w\s]{0,2}\w*\W{0,3}\Z")
LABELLED = re.compile(
    rf"(?:^|[\W_])(?:{DOCUMENT_LABEL}|(?i:id|index|idx|number|no|nr|num|rank|item|entry|ref|reference|citation|evidence"
    r"|fact|record|article|paragraph|part))[\W_]{0,4}\Z|[#(\[{<]\Z"
)


class Candidate(NamedTuple):
    """A counter and what is around it."""

    counter: Counter
    line: str  # what is before it, in its line
    after: str  # what follows it
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


def candidates_in(text: str, region: Span) -> Iterator[Candidate]:
    """All in ``text[begin:end]``, in ascending order."""
    begin, end = region
    for counter in counters(text, begin, end):
        line = text[max(begin, counter.begin - MAX_BEFORE) : counter.begin].rpartition("\n")[2]
        yield Candidate(counter, line, text[counter.end : min(end, counter.end + MAX_AFTER)], region)


def _alike(char: str) -> str:
    """Space of any kind, and none, are alike, and so are quotation marks."""
    return (char.strip() or " ").replace("'", '"')
