"""The tasks of the bench, by name. Other distributions can add tasks with the entry point group ``ragbias.tasks``."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from ragbias.display import validation_message
from ragbias.errors import RunError
from ragbias_eval.tasks.judge import Judge, LLMBar
from ragbias_eval.tasks.kv_retrieval import KVRetrieval
from ragbias_eval.tasks.longbench import LongBench, MuSiQue
from ragbias_eval.tasks.mdqa import MultiDocumentQA
from ragbias_eval.tasks.task import Answer, Case, Task
from ragbias_eval.tasks.tiny_qa import TinyQA

__all__ = [
    "TASKS", "Answer", "Case", "Judge", "KVRetrieval", "LLMBar", "LongBench", "MuSiQue", "MultiDocumentQA", "Task",
    "TinyQA", "make_task", "task_class",
]  # fmt: skip
TASKS: dict[str, type[Task]] = {
    task.name: task for task in (MultiDocumentQA, KVRetrieval, LongBench, MuSiQue, Judge, LLMBar, TinyQA)
}


def task_class(name: str) -> type[Task]:
    """Return the class of a task. Raise ``RunError`` if the name is unknown or its entry point is invalid."""
    if name in TASKS:
        return TASKS[name]
    entries = {entry.name: entry for entry in entry_points(group="ragbias.tasks")}
    if name not in entries:
        raise RunError(f"unknown task {name!r}; known tasks: {', '.join([*TASKS, *entries])}")
    task = entries[name].load()
    if not (isinstance(task, type) and issubclass(task, Task) and task.name == name):
        raise RunError(f"the entry point {name!r} is {task!r}; expected a class derived from Task with this name")
    return task


def make_task(name: str, **options: Any) -> Task:
    """Make a task by its name. Options that are None get their default. Unknown names or options raise ``RunError``."""
    task = task_class(name)
    known = [field.name for field in fields(task)]
    given = {option: value for option, value in options.items() if value is not None}
    if unknown := [option for option in given if option not in known]:
        raise RunError(f"{name} has no option {', '.join(unknown)}; its options are {', '.join(known)}")
    if "data" in known and not given.get("data"):
        raise RunError(f"{name} needs data; name the files that hold its examples")
    try:
        return task(**given)
    except ValidationError as error:
        raise RunError(f"{name}: {validation_message(error)}") from error
