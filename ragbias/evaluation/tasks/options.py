"""The checks of settings that tasks share."""

from __future__ import annotations

from typing import Any

from ragbias.checks import check_whole
from ragbias.errors import RunError

SEVERAL = {"documents": 1, "positions": 0}  # options that are several whole numbers, and their least
ONE = {"orders": 1, "limit": 1}


def check_settings(task: Any) -> None:
    """Raise ``RunError`` unless counts and places of a task are whole numbers in range, and no place is named twice."""
    for name, least in SEVERAL.items():
        values = getattr(task, name, None)
        if values is None:
            continue
        whole = all(type(each) is int and each >= least for each in values)
        if not values or not whole or len(set(values)) < len(values):
            raise RunError(f"{task.name}: {name}={values!r}; expected different whole numbers >= {least}")
    for name, least in ONE.items():
        value = getattr(task, name, None)
        if value is not None:
            check_whole(f"{task.name}: {name}", value, least, RunError)
    if type(task.seed) is not int:
        raise RunError(f"{task.name}: seed={task.seed!r}; expected a whole number")


def check_flag(name: str, value: bool) -> None:
    """Raise ``RunError`` unless ``value`` is true or false."""
    if type(value) is not bool:
        raise RunError(f"{name}={value!r}; expected true or false")
