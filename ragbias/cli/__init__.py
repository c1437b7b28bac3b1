"""The command line ``ragbias COMMAND``, with one module per command.

Other distributions add commands with the entry point group ``ragbias.commands``.

Commands import torch and optional dependencies only when they run, which keeps ``ragbias --help`` fast.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import traceback
import warnings
from importlib.metadata import entry_points, version
from typing import Annotated

import typer
from typer.main import get_command

from ragbias.cli.adapt import adapt
from ragbias.cli.ask import ask
from ragbias.cli.cache import cache
from ragbias.cli.methods import list_methods
from ragbias.cli.serve import proxy, serve
from ragbias.display import printable
from ragbias.errors import RagBiasError, causes_of, find_memory_error
from ragbias.extras import missing_extra_message
from ragbias.files import NAMELESS
from ragbias.models.named import no_model_message

USER_ERROR = 2  # exit code of errors that the user can fix
INTERRUPTED = 130  # exit code of a shell command after Ctrl-C
CLOSED_PIPE = 1  # exit code that click uses if standard output is a closed pipe
TRACEBACK = "--traceback"
EVALUATION = ("audit", "bench", "calibrate", "demo", "report")  # commands of the distribution ragbias-eval
MAX_ERROR_LENGTH = 600  # maximum number of characters of an error line
UsageError = typer.BadParameter.__mro__[1]  # from click, or from typer's copy of click

_default_format = warnings.formatwarning

app = typer.Typer(help="Remove position bias of RAG with Hugging Face models.", pretty_exceptions_enable=False)
for command in (ask, adapt, serve, proxy):
    app.command()(command)
app.command("methods")(list_methods)
app.add_typer(cache, name="cache")


def _add_commands() -> None:
    """Add the commands of other distributions. Skip a command that fails to import, or whose name is taken."""
    names = {*get_command(app).commands}  # type: ignore[attr-defined]
    for entry in entry_points(group="ragbias.commands"):
        try:
            if entry.name not in names:
                app.command(entry.name)(entry.load())
                names.add(entry.name)
        except (Exception, SystemExit) as error:  # noqa: PERF203 - imports raise errors of any class
            cause = f"{type(error).__name__}: {error}"
            print(f"ragbias: warning: the command {entry.name!r} cannot be imported: {cause}", file=sys.stderr)


_add_commands()


def _show_versions(show: bool) -> None:
    if show:
        versions = [f"{name} {version(name)}" for name in ("ragbias", "torch", "transformers")]
        print(", ".join([*versions, f"Python {platform.python_version()}"]))
        raise typer.Exit


@app.callback()
def options(
    versions: Annotated[
        bool, typer.Option("--version", help="Show the versions and exit.", callback=_show_versions, is_eager=True)
    ] = False,
    with_traceback: Annotated[bool, typer.Option(TRACEBACK, help="If the command fails, show the traceback.")] = False,
) -> None:
    """Declare the common options. ``main`` parses ``--traceback``, because the flag also applies to parsing errors."""


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning. Omit the source location of ragbias's own warnings."""
    if category.__module__.partition(".")[0] == "ragbias":
        return f"ragbias: warning: {message}\n"
    return _default_format(message, category, filename, lineno, line)


def main() -> None:
    """Run the command line and exit. An error that the user can fix prints one line; a bug prints a traceback."""
    warnings.formatwarning = _format_warning
    # on CPUs with AVX512-BF16, bitsandbytes warns about a missing package that ragbias does not use
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    arguments = sys.argv[1:] or ["--help"]
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    others = [argument for argument in arguments if argument != TRACEBACK]
    with_traceback = TRACEBACK in arguments
    traceback_first = [TRACEBACK, *others] if with_traceback else others  # typer accepts it only before the command
    try:
        code = get_command(app)(traceback_first, standalone_mode=False)
        sys.stdout.flush()  # raises if the disk is full or the pipe is closed
    except BrokenPipeError:
        _discard_output()
        code = CLOSED_PIPE
    except Exception as error:  # an interrupted import can raise any error
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes_of(error)):
            code = INTERRUPTED
        else:
            code = _report_error(error, command, with_traceback)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        print("ragbias: interrupted", file=sys.stderr)
    raise SystemExit(code)


def _report_error(error: Exception, command: str | None, with_traceback: bool) -> int:
    """Print an error that the user can fix, and return the exit code. Raise other errors again."""
    line = describe_error(error, command)
    if line is None:
        raise error
    if with_traceback:
        traceback.print_exception(error)
    print(f"ragbias: {line}", file=sys.stderr)
    if isinstance(error, OSError) and error.filename is None:
        _discard_output()
    if find_memory_error(error) is not None:  # without memory, exit handlers of libraries would fail
        sys.stderr.flush()
        os._exit(USER_ERROR)
    return USER_ERROR


def _discard_output() -> None:
    """Discard unwritten output, which Python would otherwise write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe_error(error: BaseException, command: str | None = None) -> str | None:
    """Describe, in one line, an error that the user can fix. Return None for a bug."""
    if isinstance(error, UsageError):
        return _describe_usage_error(error)
    if isinstance(error, RagBiasError):
        return _shorten(str(error)) or type(error).__name__
    if (cause := find_memory_error(error)) is not None:
        detail = f"{type(cause).__name__}: {cause}".rstrip(": ")
        return _shorten(f"out of memory ({detail:.200}); free memory, or use a smaller model, batch or prompt")
    if isinstance(error, ModuleNotFoundError):
        return missing_extra_message(error, command)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in NAMELESS):
        # ``ragbias.files`` adds file names to errors, so an error without a file name is about standard output
        file = "standard output" if error.filename is None else error.filename
        parts = [str(part) for part in (file, error.strerror) if part]
        return _shorten(": ".join(parts))
    return None


def _describe_usage_error(error: BaseException) -> str:
    message = _shorten(error.format_message()).replace(": Value error, ", ": ")  # type: ignore[attr-defined]
    if message == "Missing option '--model'.":
        message = no_model_message("--model smollm2")
    if message.startswith(tuple(f"No such command '{name}'" for name in EVALUATION)):
        message = "this command needs ragbias-eval: pip install ragbias-eval (from a clone: pip install -e evaluation)"
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message.rstrip('.')}; see `{context.command_path} --help`"


def _shorten(text: str) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= MAX_ERROR_LENGTH else f"{line[: MAX_ERROR_LENGTH - 3]}..."
