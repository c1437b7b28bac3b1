"""Show untrusted values and text safely in errors, terminals and CSV files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError  # optional: callers import it and report when it is missing

LONGEST = 60  # characters of a value in an error
# control characters except tab and line break, bidirectional controls, and lone surrogates
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    """Replace control characters, such as terminal escape codes, by U+FFFD."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def no_formula(text: str) -> str:
    """A CSV cell that no spreadsheet evaluates: formulas get a leading quote."""
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def shown(value: Any) -> str:
    """A value for an error message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def did_you_mean(name: str, known: Collection[str]) -> str:
    """``did you mean 'pine'? `` for a name that resembles a known one, else empty."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def complaints(error: ValidationError, known: Sequence[str] = ()) -> str:
    """The errors of a pydantic validation in one line; the ``known`` keys are listed after an unknown one."""
    found: list[Any] = list(error.errors())
    # a list with invalid entries counts as too short as well
    parents = {each["loc"][:depth] for each in found for depth in range(len(each["loc"]))}
    return "; ".join(
        _complaint(each, known) for each in found if each["type"] != "too_short" or each["loc"] not in parents
    )


def _complaint(error: Any, known: Sequence[str]) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown key {key!r}" + (f"; known: {', '.join(known)}" if known else "")
    if error["type"] == "missing":
        return f"{key!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] != "value_error":
        message += f", got {shown(error['input'])}"
    return f"{key}: {message}" if key else message
