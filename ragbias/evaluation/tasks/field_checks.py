"""The checks of the fields that tasks share."""

from __future__ import annotations

from typing import Any

from ragbias.checks import check_whole
from ragbias.errors import RunError

LISTS = {"documents": 1, "positions": 0}  # fields of several whole numbers, and the least of each
NUMBERS = {"orders": 1, "limit": 1}


def check_fields(task: Any) -> None:
    """Raise ``RunError`` unless a task's fields hold numbers in range, different ones in lists, and flags."""
    for name, least in LISTS.items():
        values = getattr(task, name, None)
        if values is None:
            continue
        whole = all(type(each) is int and each >= least for each in values)
        if not values or not whole or len(set(values)) < len(values):
            raise RunError(f"{task.name}: {name}={values!r}; expected different whole numbers >= {least}")
    for name, least in NUMBERS.items():
        value = getattr(task, name, None)
        if value is not None:
            check_whole(f"{task.name}: {name}", value, least, RunError)
    seed = getattr(task, "seed", 0)
    if type(seed) is not int:
        raise RunError(f"{task.name}: seed={seed!r}; expected a whole number")
    indices = getattr(task, "indices", True)
    if type(indices) is not bool:
        raise RunError(f"{task.name}: indices={indices!r}; expected true or false")
