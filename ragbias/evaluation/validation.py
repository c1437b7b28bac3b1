"""What pydantic finds wrong with data from outside, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

LONGEST = 60  # characters of a wrong value that are shown


def complaints(error: ValidationError, known: Sequence[str] = ()) -> str:
    """Each wrong value with its place, what was expected and what it is.

    Args:
        known: keys to name where an unknown one is found.
    """
    found: list[Any] = list(error.errors())
    inner = [each for each in found if not _is_of_what_it_holds(each, found)]
    return "; ".join(_complaint(each, known) for each in inner)


def _is_of_what_it_holds(error: Any, found: Sequence[Any]) -> bool:
    """Whether a list is called too short only because its entries are wrong."""
    place = error["loc"]
    return error["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in found
    )


def _complaint(error: Any, known: Sequence[str]) -> str:
    place = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown key {place!r}" + (f"; known: {', '.join(known)}" if known else "")
    if error["type"] == "missing":
        return f"{place!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{place}: {message}" if place else message
    value = repr(error["input"])
    shown = value if len(value) <= LONGEST else f"{value[:LONGEST]}..."
    return f"{place}: {message}, got {shown}" if place else f"{message}, got {shown}"
