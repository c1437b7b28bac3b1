"""The last report of each model, per context: the caller of a chain finds it, concurrent requests do not mix."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

# LangChain runs the steps of a chain in copies of the caller's context, where a plain ``set`` would be lost to the
# caller. So the variable holds a dict that all copies share, and each outermost run starts with a new one.
_reports: ContextVar[dict[object, dict[str, Any]] | None] = ContextVar("langchain_ragbias_reports", default=None)


def begin() -> None:
    """Start with no reports; called where an outermost run begins."""
    _reports.set({})


def note(owner: object, report: dict[str, Any]) -> None:
    """Keep the report of the request that ``owner`` just answered."""
    reports = _reports.get()
    if reports is None:
        begin()
        reports = _reports.get()
    assert reports is not None
    reports[owner] = report


def last(owner: object) -> dict[str, Any] | None:
    """The report of the last request that ``owner`` answered in this context."""
    return (_reports.get() or {}).get(owner)
