"""What may count documents, with the text around it, and what goes with a number that is cut out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from ragbias.boundaries.patterns import DOCUMENT_LABEL
from ragbias.boundaries.spans import Span

WORDS = {  # counters that are recognised but never cut out; longer lists of documents are compared up to here
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
MAX_BEFORE, MAX_AFTER = 24, 12  # compared characters of the line before a number, and after it
LAST_WORD = re.compile(r"[^\w\s]{0,2}\w*\W{0,3}\Z")
LABELLED = re.compile(
    rf"(?:^|[\W_])(?:{DOCUMENT_LABEL}|(?i:id|index|idx|number|no|nr|num|rank|item|entry|ref|reference|citation|evidence"
    r"|fact|record|article|paragraph|part))[\W_]{0,4}\Z|[#(\[{<]\Z"
)
FIELD = 48  # characters before a number that may hold the name of its field
TAG = re.compile(r"</?[^\W\d][\w-]*\Z")
TOTAL = re.compile(r"\s*(?:/|of|out of)\s*(\d{1,4})(?![\d/]|[.-]\d)")
ATTRIBUTE = re.compile(r"[\w.-]+=[\"']?\Z")
JSON_FIELD = re.compile(r"([\"'])[\w .-]+\1[ ]?:[ ]?[\"']?\Z")
BRACKETS = {"[": "]", "(": ")", "{": "}"}


class Candidate(NamedTuple):
    """``text[begin:end]`` may count to ``value``; only candidates of one kind are compared."""

    begin: int
    end: int
    kind: str
    value: int
    line: str  # the text before it in its line
    after: str
    region: Span

    @property
    def span(self) -> Span:
        return self.begin, self.end

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
        """Whether it is in brackets or a tag, after a label, or at the beginning of a line, as documents' numbers."""
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
        """The text that candidates share which count together: the last word before them, or at least a character."""
        word = LAST_WORD.search(self.line)
        assert word is not None  # it may be empty
        after = _alike(self.after[:1])
        return (self.kind, word[0].lower().replace("'", '"'), after), (self.kind, _alike(self.line[-1:]), after)


def candidates_in(text: str, region: Span) -> Iterator[Candidate]:
    """All in ``text[begin:end]``, in ascending order."""
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
        begin, word = end - 1, word[-1]  # DocA
    for kind, value in VALUES.get(word.lower(), ()):
        yield begin, end, kind, value


def cut(text: str, candidate: Candidate, opens: bool) -> Span:
    """The number with what would be left over without it: brackets, the field's name, a total, a space.

    ``opens`` says that all such numbers begin their lines, so that the punctuation after them goes too.
    """
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
    elif line.endswith("#") or (TAG.search(line) and line[-1:] in "-_"):
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
    """Space of any kind, and none, are alike, and so are quotation marks."""
    return (char.strip() or " ").replace("'", '"')
