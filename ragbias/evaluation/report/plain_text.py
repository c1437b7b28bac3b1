"""Text of others (names, answers, notes of a file) as it may be shown: it moves no cursor and starts no formula."""

from __future__ import annotations

import re

# control characters but tab and line break, those that turn the direction of writing, and halves of surrogate pairs
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    """Text whose control characters, such as a terminal's escape codes, are shown as U+FFFD."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def no_formula(text: str) -> str:
    """A cell of a CSV file that a spreadsheet does not compute: with a quote before what begins a formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) else text
