"""What goes with a document's number where it is taken out, so that nothing is left that tells where it was."""

from __future__ import annotations

import re

from ragbias.boundaries.spans import Span

FIELD = 48  # characters before a number in which the name of its field is looked for
TAG = re.compile(r"</?[^\W\d][\w-]*\Z")
TOTAL = re.compile(r"\s*(?:/|of|out of)\s*(\d{1,4})(?![\d/]|[.-]\d)")
ATTRIBUTE = re.compile(r"[\w.-]+=[\"']?\Z")
JSON_FIELD = re.compile(r"([\"'])[\w .-]+\1[ ]?:[ ]?[\"']?\Z")
BRACKETS = {"[": "]", "(": ")", "{": "}"}
COMMA = re.compile(r"\s*,\s*")


def cut(text: str, span: Span, region: Span, opens: bool) -> Span:
    """The number, and what would be left over without it: brackets, the field's name, a total, a space.

    Args:
        text: the prompt.
        span: ``(begin, end)`` of the number.
        region: what may be cut, in characters of the prompt.
        opens: whether such numbers begin their lines, so that the punctuation after them goes too.
    """
    (begin, end), (low, high) = span, region
    if total := TOTAL.match(text, end, high):
        end = total.end()
    line = text[low:begin]
    quote = 1 if line[-1:] in ("'", '"') and text[end : end + 1] == line[-1:] else 0
    if pair := JSON_FIELD.search(line[-FIELD:]):
        begin, end = begin - len(pair[0]), end + quote
        comma = COMMA.match(text, end, high)
        if comma:
            return begin, comma.end()
        ahead = re.search(r"\s*,\s*\Z", text[low:begin])
        return begin - (len(ahead[0]) if ahead else 0), end
    if name := ATTRIBUTE.search(line[-FIELD:]):
        begin, end = begin - len(name[0]), end + quote
    elif begin > low and BRACKETS.get(text[begin - 1]) == text[end : end + 1]:
        begin, end = begin - 1, end + 1
    elif (begin > low and text[begin - 1] == "#") or (TAG.search(line) and line[-1:] in "-_"):
        begin -= 1
    if opens:
        while end < high and text[end] in " \t:.)]":
            end += 1
    elif begin > low and text[begin - 1] == " " and text[end : end + 1] not in ("(", "["):
        begin -= 1
    elif name and text[end : end + 1] == " ":
        end += 1
    return begin, end
