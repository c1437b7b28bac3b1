"""The line of the user's that a warning is about, below the frames of frameworks."""

from __future__ import annotations

import sys

FRAMEWORKS = frozenset(
    {
        *("langchain", "langchain_classic", "langchain_community", "langchain_core", "langchain_ragbias", "langgraph"),
        *("llama_index", "llama_index_instrumentation", "pydantic", "torch", "workflows", "wrapt"),
    }
)
Site = tuple[str, int]  # file and line


def call_site(frameworks: frozenset[str] = FRAMEWORKS) -> tuple[int, Site | None]:
    """The caller's stack level of the nearest code of the user's, and its file and line.

    A worker thread may run no code of the user's; then the level is that of whoever called the caller.

    Args:
        frameworks: top-level packages between the user's code and this library, where no call site is looked for.
    """
    inside = frameworks | sys.stdlib_module_names | {"ragbias"}
    frame, level = sys._getframe(1), 1
    while frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        if frame.f_back is None:
            return 2, None
        frame, level = frame.f_back, level + 1
    return level, (frame.f_code.co_filename, frame.f_lineno)
