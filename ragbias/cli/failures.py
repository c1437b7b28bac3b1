"""One line for errors that the user can fix; any other is a bug, with a traceback."""

from __future__ import annotations

import typer

from ragbias.display import printable
from ragbias.errors import RagBiasError, out_of_memory
from ragbias.extras import missing
from ragbias.files import NAMELESS
from ragbias.models.named import EXPECTED

LONGEST = 600  # characters of one line
UsageError = typer.BadParameter.__mro__[1]  # click's, or that of typer's own copy of click, which has no public name


def reason(error: BaseException, command: str | None = None) -> str | None:
    """The line about an error that the user can fix; None for a bug.

    Args:
        command: the one that failed; of several extras with a missing package, its extra is named.
    """
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, RagBiasError):
        return _one_line(str(error)) or type(error).__name__
    if (cause := out_of_memory(error)) is not None:
        what = f"{type(cause).__name__}: {cause}".rstrip(": ")
        return _one_line(f"out of memory ({what:.200}); give it more, or take a smaller model, batch or prompt")
    if isinstance(error, ModuleNotFoundError):
        return missing(error, command)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in NAMELESS):
        # ``ragbias.files`` names a file that is being written
        file = "standard output" if error.filename is None else error.filename
        return _one_line(": ".join(map(str, filter(None, (file, error.strerror)))))
    return None


def _usage(error: BaseException) -> str:
    message = _one_line(error.format_message())  # type: ignore[attr-defined]
    if message == "Missing option '--model'.":
        message = f"no --model is named, e.g. --model smollm2; expected {EXPECTED}"
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message.rstrip('.')}; see `{context.command_path} --help`"


def _one_line(text: str) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
