"""The console, progress bars, output files and numeric options of all commands.

Only ``--force`` overwrites a file that ragbias did not write. Numeric options show their bounds in help and errors.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment

from ragbias.checks import Bounds
from ragbias.display import printable, shown
from ragbias.errors import RagBiasError
from ragbias.files import writing
from ragbias.models.named import EXPECTED

MODELS = f"{EXPECTED}."
DEVICES = (("/", "dev"), ("/", "proc"))
MAX_SILENCE = 30.0  # seconds without output, after which an update prints a progress line
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
ESTIMATE_PERIOD = 3600.0  # seconds; steps in this period estimate the remaining time


class _PlainConsole(Console):
    """A console that strips terminal control codes from untrusted text."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


console = _PlainConsole(markup=False, emoji=False)  # paths, names and answers must appear verbatim
Force = Annotated[
    bool, typer.Option("--force", help="Overwrite output files that ragbias did not write.", is_eager=True)
]


def _digest_file(path: Path) -> Path:
    """Return the file that stores the digest of the output file ``path``."""
    from ragbias.models.gguf import cache_folder

    return cache_folder(path.name) / "outputs" / sha256(os.fsencode(path.resolve())).hexdigest()


def _is_unchanged_output(path: Path) -> bool:
    try:
        return _digest_file(path).read_text() == sha256(path.read_bytes()).hexdigest()
    except OSError:
        return False


@contextmanager
def output(path: Path) -> Iterator[None]:
    """Record the digest of the file that the ``with`` block writes, so that later runs may overwrite the file.

    If the block raises an error and the file is new, the file is removed.
    """
    with writing(path):
        yield
    if path.is_file():
        with suppress(OSError, RagBiasError):  # without a cache folder, the next run needs --force
            record = _digest_file(path)
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(sha256(path.read_bytes()).hexdigest())


def check_overwritable(path: Path, force: bool) -> None:
    """Raise an error for a file that ragbias did not write, or that changed later. ``force`` skips this check.

    A missing or empty file can always be overwritten.
    """
    if not force and path.is_file() and path.stat().st_size and not _is_unchanged_output(path):
        raise typer.BadParameter(f"{path} exists, and ragbias did not write it; give another file, or --force")


def check_file(context: typer.Context, path: Path | None) -> Path | None:
    """Check that an output file can be written, before the work starts."""
    if path is None:
        return None
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is not a folder; create it first")
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; expected the name of a file")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written: no permission, or a read-only disk; give another file")
    if path.parts[:2] not in DEVICES:
        check_overwritable(path, context.params["force"])
    return path


def check_folder(path: Path | None) -> Path | None:
    """Check that ``path`` is a folder or does not exist yet. A missing folder is created later."""
    if path is not None and path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is a file; give a folder for the results")
    return path


JsonPath = Annotated[
    Path | None, typer.Option("--json", help="Also write the results to this file.", callback=check_file)
]


class _LineProgress(Progress):
    """A progress bar. Outside a terminal, it prints a line for each new description and every half minute."""

    _printed = 0.0

    def update(self, task_id: TaskID, **changes: Any) -> None:
        task = self._tasks[task_id]
        before = task.description
        super().update(task_id, **changes)
        if self.console.is_terminal:
            return
        if task.description != before:
            self._print_line(f"{task.description} ...")
        elif time.monotonic() - max(self._printed, task.start_time or 0) > MAX_SILENCE and task.total:
            left = f", about {task.time_remaining:.0f} s left" if (task.time_remaining or 0) > 1 else ""
            self._print_line(f"{task.description}: {task.completed:g} of {task.total:g}{left}")

    def _print_line(self, line: str) -> None:
        self._printed = time.monotonic()
        self.console.print(line)


def progress() -> Progress:
    """Create a progress bar for long work."""
    return _LineProgress(
        TextColumn("{task.description:20}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=ESTIMATE_PERIOD,
    )


def status(text: str) -> AbstractContextManager[Any]:
    """Show a spinner in a terminal. Otherwise print a line."""
    if console.is_terminal:
        return console.status(f"{text} ...")
    console.print(f"{text} ...")
    return nullcontext()


def select_fields(settings: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Select the options that are not None and are fields of the class ``settings``."""
    fields = inspect.signature(settings).parameters
    return {name: value for name, value in options.items() if value is not None and name in fields}


def quiet_libraries() -> None:
    """Silence progress bars and warnings of libraries, but not their errors."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def write_text(text: str, path: Path) -> None:
    """Write text to an output file."""
    with output(path):
        path.write_text(text, encoding="utf-8")


def write_json(data: Any, path: Path | None) -> None:
    """Write data to the file of ``--json``. Do nothing if ``path`` is None."""
    if path is not None:
        write_text(json.dumps(data, indent=2) + "\n", path)


class Numbers(list[int]):
    """The numbers of a comma-separated option. With ``list[int]``, typer would expect a repeated option."""


@dataclass(frozen=True)
class Integer:
    """Parse a whole number within the bounds or, if ``several``, comma-separated ``Numbers`` such as ``2,20,100``."""

    bounds: Bounds
    several: bool = False
    __name__ = "whole number"  # typer needs a name

    def __call__(self, typed: str | int) -> int | Numbers:
        text = str(typed)  # typer also passes defaults, which are numbers
        parts = [part.strip() for part in text.split(",")] if self.several else [text]
        if all(_INTEGER.fullmatch(part) and self.bounds.include(int(part)) for part in parts):
            return Numbers(map(int, parts)) if self.several else int(text)
        expected = "comma-separated whole numbers" if self.several else "a whole number"
        raise typer.BadParameter(f"must be {expected} from {self.bounds}, got {shown(text)}")


def integer(bounds: Bounds, help: str, several: bool = False) -> Any:
    """Declare an option for a whole number. With ``several=True``, it takes several numbers, separated by commas."""
    metavar = f"{bounds}, ..." if several else str(bounds)
    return typer.Option(parser=Integer(bounds, several), metavar=metavar, help=help)
