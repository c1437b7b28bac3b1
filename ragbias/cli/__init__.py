"""The command line: ``ragbias demo | ask | audit | inspect | bench | report | speed | calibrate | methods``."""

from __future__ import annotations

import sys

import typer

from ragbias.cli.ask import ask
from ragbias.cli.audit import audit
from ragbias.cli.bench import bench
from ragbias.cli.calibrate import calibrate
from ragbias.cli.demo import demo
from ragbias.cli.inspect import inspect
from ragbias.cli.methods import list_methods
from ragbias.cli.report import report
from ragbias.cli.speed import speed
from ragbias.errors import RagBiasError

INTERRUPTED = 130  # exit code, as shells have it

app = typer.Typer(
    help="Training-free removal of position bias for RAG with Hugging Face models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (demo, ask, audit, inspect, bench, report, speed, calibrate):
    app.command()(command)
app.command("methods")(list_methods)


def main() -> None:
    """Run the command line; a refused input ends with exit code 2 and one line."""
    try:
        _quiet()
        app()
    except (RagBiasError, OSError, ImportError, ValueError, TypeError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"ragbias: {message[:600]}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        _tell_interruption()
        raise SystemExit(INTERRUPTED) from None
    except SystemExit as ended:  # Typer makes one of an interrupted command, and says nothing
        if ended.code == INTERRUPTED:
            _tell_interruption()
        raise


def _tell_interruption() -> None:
    print("ragbias: interrupted", file=sys.stderr)


def _quiet() -> None:
    """Keep the libraries' own progress bars and advice off the terminal; their errors still come through."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
