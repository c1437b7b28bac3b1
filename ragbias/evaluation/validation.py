"""What pydantic finds wrong with data from outside, in one line."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

LONGEST = 60  # characters of a wrong value that are shown


def complaints(error: ValidationError) -> str:
    """Each wrong value with its place, what was expected and what it is."""
    return "; ".join(_complaint(each) for each in error.errors())


def _complaint(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"{place!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{place}: {message}" if place else message
    value = repr(error["input"])
    shown = value if len(value) <= LONGEST else f"{value[:LONGEST]}..."
    return f"{place}: {message}, got {shown}" if place else f"{message}, got {shown}"
