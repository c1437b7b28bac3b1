"""The tasks of the bench, by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from ragbias.display import validation_message
from ragbias.errors import RunError
from ragbias.evaluation.tasks.judge import Judge, LLMBar
from ragbias.evaluation.tasks.kv_retrieval import KVRetrieval
from ragbias.evaluation.tasks.longbench import LongBench, MuSiQue
from ragbias.evaluation.tasks.mdqa import MultiDocumentQA
from ragbias.evaluation.tasks.task import Answer, Case, Task
from ragbias.evaluation.tasks.tiny_qa import TinyQA

__all__ = [
    "TASKS", "Answer", "Case", "Judge", "KVRetrieval", "LLMBar", "LongBench", "MuSiQue", "MultiDocumentQA", "Task",
    "TinyQA", "make_task",
]  # fmt: skip
TASKS: dict[str, type[Task]] = {
    task.name: task for task in (MultiDocumentQA, KVRetrieval, LongBench, MuSiQue, Judge, LLMBar, TinyQA)
}


def make_task(name: str, **options: Any) -> Task:
    """Make a task by its name. Options that are None get their default. Unknown names or options raise ``RunError``."""
    if name not in TASKS:
        raise RunError(f"unknown task {name!r}; known tasks: {', '.join(TASKS)}")
    known = [field.name for field in fields(TASKS[name])]
    given = {option: value for option, value in options.items() if value is not None}
    if unknown := [option for option in given if option not in known]:
        raise RunError(f"{name} has no option {', '.join(unknown)}; its options are {', '.join(known)}")
    if "data" in known and not given.get("data"):
        raise RunError(f"{name} needs data; name the files that hold its examples")
    try:
        return TASKS[name](**given)
    except ValidationError as error:
        raise RunError(f"{name}: {validation_message(error)}") from error
