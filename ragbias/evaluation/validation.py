"""What pydantic finds wrong with a file or with settings, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ragbias.checks import shown

if TYPE_CHECKING:
    from pydantic import ValidationError  # optional: the callers import it, and say so where it is missing


def complaints(error: ValidationError, known: Sequence[str] = ()) -> str:
    """Each wrong value with its key, what was expected and what it is.

    Args:
        known: keys to name where an unknown one is found.
    """
    found: list[Any] = list(error.errors())
    return "; ".join(_complaint(each, known) for each in found if not _follows_from_entries(each, found))


def _follows_from_entries(error: Any, found: Sequence[Any]) -> bool:
    """Whether a list is called too short only because its entries are wrong."""
    path = error["loc"]
    return error["type"] == "too_short" and any(
        len(other["loc"]) > len(path) and other["loc"][: len(path)] == path for other in found
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
