"""Warnings at the user's line, below the frames of frameworks, once per line."""

from __future__ import annotations

import sys
import warnings
from contextvars import Context, ContextVar

FRAMEWORKS = frozenset(  # top-level packages between user code and this library
    {
        *("langchain", "langchain_classic", "langchain_community", "langchain_core", "langchain_ragbias", "langgraph"),
        *("llama_index", "llama_index_instrumentation", "pydantic", "torch", "workflows", "wrapt"),
    }
)
Line = tuple[str, int]  # file and number

_of_worker: ContextVar[Line | None] = ContextVar("ragbias_call_site", default=None)


def pass_to_worker(context: Context) -> None:
    """Store the caller's line in a context, for warnings of the thread that runs in it."""
    context.run(_of_worker.set, call_site()[1])


def call_site() -> tuple[int, Line | None]:
    """Stack level, and file and line, of the user's code that called the caller.

    In a worker thread without user code: the level of the caller's caller, and the line from ``pass_to_worker``.
    """
    inside = FRAMEWORKS | sys.stdlib_module_names | {"ragbias"}
    frame, level = sys._getframe(1), 1
    while frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        if frame.f_back is None:
            return 2, _of_worker.get()
        frame, level = frame.f_back, level + 1
    return level, (frame.f_code.co_filename, frame.f_lineno)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the user's line."""
    _, line = call_site()
    if line is None:
        warnings.warn(message, category, stacklevel=2)
    else:
        warnings.warn_explicit(message, category, *line)


class WarnedLines:
    """Warns once per line of user code and kind of warning."""

    def __init__(self) -> None:
        self._warned: set[tuple[Line | None, str]] = set()

    def warn(self, message: str, category: type[Warning], kind: str = "") -> None:
        _, line = call_site()
        if (line, kind) not in self._warned:
            self._warned.add((line, kind))
            warn(message, category)
