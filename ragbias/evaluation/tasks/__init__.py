"""The tasks of the bench, one file each, by name."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation.tasks.field_checks import LISTS
from ragbias.evaluation.tasks.judge import Judge
from ragbias.evaluation.tasks.kv_retrieval import KVRetrieval
from ragbias.evaluation.tasks.llmbar import LLMBar
from ragbias.evaluation.tasks.longbench import LongBench
from ragbias.evaluation.tasks.mdqa import MultiDocumentQA
from ragbias.evaluation.tasks.musique import MuSiQue
from ragbias.evaluation.tasks.task import Answer, Case, Task
from ragbias.evaluation.tasks.tiny_qa import TinyQA

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (MultiDocumentQA, KVRetrieval, LongBench, MuSiQue, Judge, LLMBar, TinyQA)
}


def make(name: str, **options: Any) -> Task:
    """The task of this name.

    Args:
        options: fields of the task. Of ``documents`` and ``positions`` a list or a single number stands for a tuple, of
            ``data`` a string for a path; None stands for the default.

    Raises:
        RunError: no task has this name, it has no such option, an option is out of range, or its data is missing.
    """
    if name not in TASKS:
        raise RunError(f"unknown task {name!r}; known tasks: {', '.join(TASKS)}")
    task = TASKS[name]
    known = {field.name: field for field in fields(task)}
    given = {option: value for option, value in options.items() if value is not None}
    if unknown := [option for option in given if option not in known]:
        raise RunError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    if missing := [option for option, field in known.items() if field.default is MISSING and not given.get(option)]:
        remedy = "name the files that hold its examples" if missing == ["data"] else "give a value in a YAML file"
        raise RunError(f"{name} needs {', '.join(missing)}; {remedy}")
    return task(**{option: _as_field(name, option, value) for option, value in given.items()})


def _as_field(task: str, option: str, value: Any) -> Any:
    if option == "data":
        if (files := as_paths(value)) is None:
            raise RunError(f"{task}: data={value!r}; expected paths of files")
        return files
    if option in LISTS:
        value = [value] if type(value) is int else value
        if not isinstance(value, (list, tuple)):
            raise RunError(f"{task}: {option}={value!r}; expected a list of whole numbers")
        return tuple(value)
    return value


def as_paths(value: Any) -> tuple[Path, ...] | None:
    """The paths of files that one path or a list of paths names; None for anything else."""
    files = [value] if isinstance(value, (str, Path)) else value
    if not isinstance(files, (list, tuple)) or not all(isinstance(file, (str, Path)) for file in files):
        return None
    return tuple(map(Path, files))


__all__ = [
    "TASKS",
    "Answer",
    "Case",
    "Judge",
    "KVRetrieval",
    "LLMBar",
    "LongBench",
    "MuSiQue",
    "MultiDocumentQA",
    "Task",
    "TinyQA",
    "as_paths",
    "make",
]
