"""Attribute warnings to the line of user code that called a framework, and warn once per line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import FrameType

# top-level packages that are not user code; integrations add the packages of their framework
NOT_USER_CODE = {
    *sys.stdlib_module_names,
    "anyio",
    "fastapi",
    "nest_asyncio",
    "pydantic",
    "ragbias",
    "ragbias_eval",
    "ragbias_vllm",
    "starlette",
    "tenacity",
    "torch",
    "uvicorn",
    "wrapt",
}
Line = tuple[str, int]  # file name and line number
NO_LINE = ("<thread without user code>", 1)
EVENT_LOOP = ("asyncio.base_events", "asyncio.events", "asyncio.runners")

_remembered: ContextVar[Sequence[Line]] = ContextVar("ragbias_call_site", default=())


def add_framework(*packages: str) -> None:
    """Register the top-level packages of a framework. Warnings then show the line of user code that calls it."""
    NOT_USER_CODE.update(packages)


def remember_call_site() -> Callable[[], None]:
    """Remember the current line of user code in this context and its copies. Return a function that forgets it."""
    lines = [call_site()]
    _remembered.set(lines)
    return lines.clear


def call_site() -> Line:
    """Return the innermost line of user code on the stack, or else the remembered line."""
    frame: FrameType | None = sys._getframe(1)
    remembered = _remembered.get()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in EVENT_LOOP and remembered:  # the outer frames started the event loop, but not this task
            break
        if module.partition(".")[0] not in NOT_USER_CODE:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return remembered[0] if remembered else NO_LINE


def warn(message: str, category: type[Warning]) -> None:
    warnings.warn_explicit(message, category, *call_site())


class WarnedLines:
    """Issue each kind of warning once per line of user code."""

    def __init__(self) -> None:
        self._warned: set[tuple[Line, str]] = set()

    def warn(self, message: str, category: type[Warning], kind: str = "") -> None:
        line = call_site()
        if (line, kind) not in self._warned:
            warn(message, category)  # may raise
            self._warned.add((line, kind))
