"""Format untrusted values and text for errors and terminals."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

LONGEST = 60  # maximum number of characters of a value in an error
# matches control characters except tab and line break, bidirectional controls, and lone surrogates
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_JSON_TYPES = {
    type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array",
    dict: "an object",
}  # fmt: skip


def printable(text: str) -> str:
    """Replace control characters, such as those that begin terminal escape codes, with U+FFFD."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def json_type(value: object) -> str:
    """Return the name of a JSON value's type, for errors that must not quote the value."""
    return "an empty array" if value == [] else _JSON_TYPES.get(type(value), type(value).__name__)


def shown(value: Any) -> str:
    """Return the shortened ``repr`` of a value for an error message."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return "a number with thousands of digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a hint such as ``did you mean 'pine'? `` if ``name`` is almost a known name, else an empty string."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}? " if close and name not in close else ""


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each setting that changed, with its old and new value."""
    return [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r} now"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def validation_message(error: ValidationError, known: Sequence[str] = ()) -> str:
    """Join the errors of a pydantic validation into one line. For an unknown key, list the ``known`` keys."""
    errors: list[Any] = list(error.errors())
    # pydantic also reports that a list with invalid entries is too short
    parents = {entry["loc"][:depth] for entry in errors for depth in range(len(entry["loc"]))}
    own = [entry for entry in errors if entry["type"] != "too_short" or entry["loc"] not in parents]
    return "; ".join(_entry_message(entry, known) for entry in own)


def _entry_message(error: Any, known: Sequence[str]) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown key {key!r}" + (f"; known: {', '.join(known)}" if known else "")
    if error["type"] == "missing":
        return f"{key!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] != "value_error":
        message += f", got {shown(error['input'])}"
    return f"{key}: {message}" if key else message
