"""The last report of each LLM object, for its ``last_report``: the caller finds it, concurrent requests do not mix."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

Reports = dict[object, dict[str, Any]]


class LastReports:
    """One report per owner in each context (thread or task).

    Contexts that are copied from one another share their reports until one of them calls ``clear`` or ``separate``.
    So a framework that runs the steps of a chain in copies of the caller's context, where a variable that is set is
    lost to the caller, still leaves the reports there.

    Args:
        name: of the context variable.
    """

    def __init__(self, name: str) -> None:
        self._reports: ContextVar[Reports | None] = ContextVar(name, default=None)

    def clear(self) -> None:
        """Start with no reports in this context and in all that are copied from it."""
        self._reports.set({})

    def separate(self) -> None:
        """Keep the reports, but show those noted from now on to no other context than this and its copies."""
        self._reports.set(dict(self._reports.get() or {}))

    def note(self, owner: object, report: dict[str, Any]) -> None:
        """Keep the report of the request that ``owner`` just answered."""
        reports = self._reports.get()
        if reports is None:
            self._reports.set(reports := {})
        reports[owner] = report

    def last(self, owner: object) -> dict[str, Any] | None:
        """The report of the last request that ``owner`` answered in this context; ``None`` before the first."""
        return (self._reports.get() or {}).get(owner)
