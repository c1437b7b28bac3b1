"""The line of the user's that a warning is about, below the frames of frameworks; and warnings once for each line."""

from __future__ import annotations

import sys
import warnings
from contextvars import Context, ContextVar

FRAMEWORKS = frozenset(  # top-level packages between the user's code and this library
    {
        *("langchain", "langchain_classic", "langchain_community", "langchain_core", "langchain_ragbias", "langgraph"),
        *("llama_index", "llama_index_instrumentation", "pydantic", "torch", "workflows", "wrapt"),
    }
)
Site = tuple[str, int]  # file and line

_of_worker: ContextVar[Site | None] = ContextVar("ragbias_call_site", default=None)


def tell_worker(context: Context) -> None:
    """Let code that another thread runs in this context know the caller's line, which its own stack does not show."""
    context.run(_of_worker.set, call_site()[1])


def call_site() -> tuple[int, Site | None]:
    """The caller's stack level of the nearest code of the user's, and its file and line.

    A worker thread may run no code of the user's; then the level is that of whoever called the caller, and the line is
    that of ``tell_worker``, if it was told.
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
    _, site = call_site()
    if site is None:
        warnings.warn(message, category, stacklevel=2)
    else:
        warnings.warn_explicit(message, category, *site)


class WarnedLines:
    """Warns once for each line of the user's and each kind of warning."""

    def __init__(self) -> None:
        self._warned: set[tuple[Site | None, str]] = set()

    def warn(self, message: str, category: type[Warning], kind: str = "") -> None:
        _, site = call_site()
        if (site, kind) not in self._warned:
            self._warned.add((site, kind))
            warn(message, category)
