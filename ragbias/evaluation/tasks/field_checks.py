"""The checks of the fields that tasks share."""

from __future__ import annotations

from typing import Any

from ragbias import checks as bounds
from ragbias.checks import check_whole_between
from ragbias.display import shown
from ragbias.errors import RunError

LISTS = {"documents": bounds.DOCUMENTS, "positions": bounds.POSITIONS}  # fields of several whole numbers
FLAGS = ("indices", "explain", "chat")
NUMBERS = {"orders": bounds.ORDERS, "limit": bounds.QUESTIONS, "seed": bounds.SEED, "shorten": bounds.WORDS}


def check_fields(task: Any) -> None:
    """Raise ``RunError`` unless a task's fields hold numbers in range, different ones in lists, and flags."""
    for name, each in LISTS.items():
        values = getattr(task, name, None)
        if values is None:
            continue
        whole = all(type(value) is int and each.least <= value <= each.most for value in values)
        if not values or not whole or len(set(values)) < len(values):
            raise RunError(f"{task.name}: {name}={shown(values)}; expected different whole numbers from {each}")
    for name, each in NUMBERS.items():
        value = getattr(task, name, None)
        if value is not None:
            check_whole_between(f"{task.name}: {name}", value, each, RunError)
    for name in FLAGS:
        value = getattr(task, name, True)
        if type(value) is not bool:
            raise RunError(f"{task.name}: {name}={value!r}; expected true or false")
