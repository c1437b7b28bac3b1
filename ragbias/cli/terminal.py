"""What all commands share: the console, progress, and the option that writes JSON."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ragbias.errors import ArgumentError

console = Console()


def in_a_folder(path: Path | None) -> Path | None:
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is no folder; create it first")
    return path


JsonPath = Annotated[
    Path | None, typer.Option("--json", help="Write the results to this file as well.", callback=in_a_folder)
]


def numbers(option: str, text: str | None) -> list[int] | None:
    """The whole numbers of a list like ``2,20,100``."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(f"{option} {text!r}: expected whole numbers with commas between them") from None


class _Lines(Progress):
    """A progress bar; where there is no terminal to draw it on, a line for each new description."""

    def update(self, task_id: TaskID, **changes: Any) -> None:
        description = changes.get("description")
        if not self.console.is_terminal and description not in (None, self._tasks[task_id].description):
            self.console.print(f"{description} ...")
        super().update(task_id, **changes)


def progress() -> Progress:
    return _Lines(
        TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def status(text: str) -> AbstractContextManager[Any]:
    """A spinner, or a line where there is no terminal to draw it on."""
    if console.is_terminal:
        return console.status(f"{text} ...")
    console.print(f"{text} ...")
    return nullcontext()


def write_json(data: Any, path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(data, indent=2) + "\n")
