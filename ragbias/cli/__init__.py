"""The command line: ``ragbias COMMAND``, one module per command.

Commands import lazily, so that ``ragbias --help`` needs neither torch nor an extra.
"""

from __future__ import annotations

import os
import platform
import sys
import traceback
import warnings
from importlib.metadata import version
from typing import Annotated

import typer
from typer.main import get_command

from ragbias.cli.ask import ask
from ragbias.cli.audit import audit
from ragbias.cli.bench import bench
from ragbias.cli.cache import cache
from ragbias.cli.calibrate import calibrate
from ragbias.cli.demo import demo
from ragbias.cli.methods import list_methods
from ragbias.cli.report import report
from ragbias.cli.serve import proxy, serve
from ragbias.display import printable
from ragbias.errors import RagBiasError, chain, out_of_memory
from ragbias.extras import missing
from ragbias.files import NAMELESS
from ragbias.models.named import no_model
from ragbias.models.threads import use_idle_cores

REFUSED = 2  # exit code of errors that the user can fix
INTERRUPTED = 130  # exit code of shells
UNREAD = 1  # standard output is a closed pipe; click's exit code
TRACEBACK = "--traceback"
COMPUTING = ("ask", "audit", "bench", "calibrate", "demo")  # commands that run a model for minutes
LONGEST = 600  # characters of one line
UsageError = typer.BadParameter.__mro__[1]  # click's, or that of typer's own copy of click, which has no public name

_in_full = warnings.formatwarning

app = typer.Typer(
    help="Training-free removal of position bias for RAG with Hugging Face models.",
    pretty_exceptions_enable=False,
)
for command in (demo, ask, audit, bench, report, calibrate, serve, proxy):
    app.command()(command)
app.command("methods")(list_methods)
app.add_typer(cache, name="cache")


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
    with_traceback: Annotated[
        bool, typer.Option(TRACEBACK, help="Show the traceback of an error that ends the command.")
    ] = False,
) -> None:
    """Options shared by all commands. ``main`` reads ``--traceback`` itself so that it also covers parsing errors."""


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning of ragbias without its source location."""
    if category.__module__.partition(".")[0] == "ragbias":
        return f"ragbias: warning: {message}\n"
    return _in_full(message, category, filename, lineno, line)


def main() -> None:
    """Run the command line and exit: code 2 and one line for an error of the user, a traceback for a bug."""
    warnings.formatwarning = _one_line
    arguments = sys.argv[1:] or ["--help"]
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    if command in COMPUTING and {"--help", "--cache"}.isdisjoint(arguments):  # states of a cache depend on the threads
        use_idle_cores()
    try:
        # the option may be anywhere; typer takes it before the command only
        code = get_command(app)(sorted(arguments, key=TRACEBACK.__ne__), standalone_mode=False)
        sys.stdout.flush()  # here, so that a full disk or a closed pipe is reported below
    except BrokenPipeError:
        _drop_output()
        code = UNREAD
    except Exception as error:  # some modules turn an interrupt during their import into another error
        if any(isinstance(cause, KeyboardInterrupt) for cause in chain(error)):
            code = INTERRUPTED
        else:
            code = _refused(error, command, TRACEBACK in arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        print("ragbias: interrupted", file=sys.stderr)
    raise SystemExit(code)


def _refused(error: Exception, command: str | None, with_traceback: bool) -> int:
    """Print an error that the user can fix; raise a bug again."""
    line = reason(error, command)
    if line is None:
        raise error
    if with_traceback:
        traceback.print_exception(error)
    print(f"ragbias: {line}", file=sys.stderr)
    if isinstance(error, OSError) and error.filename is None:
        _drop_output()
    if out_of_memory(error) is not None:  # the libraries' exit handlers need memory too, and would fail loudly
        sys.stderr.flush()
        os._exit(REFUSED)
    return REFUSED


def _drop_output() -> None:
    """Discard unwritten output; the interpreter would write it again at its end, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reason(error: BaseException, command: str | None = None) -> str | None:
    """One line about an error that the user can fix; None for a bug. ``command`` is the failed command."""
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, RagBiasError):
        return _shortened(str(error)) or type(error).__name__
    if (cause := out_of_memory(error)) is not None:
        detail = f"{type(cause).__name__}: {cause}".rstrip(": ")
        return _shortened(f"out of memory ({detail:.200}); free some, or use a smaller model, batch or prompt")
    if isinstance(error, ModuleNotFoundError):
        return missing(error, command)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in NAMELESS):
        # ``ragbias.files`` names a file that is being written
        file = "standard output" if error.filename is None else error.filename
        return _shortened(": ".join(map(str, filter(None, (file, error.strerror)))))
    return None


def _usage(error: BaseException) -> str:
    message = _shortened(error.format_message()).replace(": Value error, ", ": ")  # type: ignore[attr-defined]
    if message == "Missing option '--model'.":
        message = no_model("--model smollm2")
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message.rstrip('.')}; see `{context.command_path} --help`"


def _shortened(text: str) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
