"""The last report of each LLM object, for its ``last_report``: the caller finds it, concurrent requests do not mix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from ragbias.adapters.context_scoped import ContextScoped


class Owner:
    """Stands for an LLM object, and is forgotten with it."""


Reports = dict["ref[Owner]", dict[str, Any]]


class LastReports:
    """One report per owner in each context (thread or task), as long as the owner lives.

    The steps of a run leave their reports to its caller, see ``ContextScoped``.

    Args:
        name: of the context variable.
    """

    def __init__(self, name: str) -> None:
        self._reports: ContextScoped[Reports] = ContextScoped(name, _of_the_living)

    def begin(self, anew: bool = True) -> Callable[[], None]:
        """Begin a run, and give what ends it.

        Args:
            anew: begin it without reports.
        """
        return self._reports.begin(anew)

    def outdate(self) -> None:
        """Have no reports here, nor where this context was copied from: what runs cannot leave them to its caller."""
        self._reports.outdate()

    def clear(self) -> None:
        """Have no reports in this context."""
        self._reports.forget()

    def note(self, owner: Owner, report: dict[str, Any]) -> None:
        """Keep the report of the request that ``owner`` just answered."""
        self._reports.own()[ref(owner)] = report

    def last(self, owner: Owner) -> dict[str, Any] | None:
        """The report of the last request that ``owner`` answered in this context; ``None`` before the first."""
        return (self._reports.get() or {}).get(ref(owner))


def _of_the_living(reports: Reports | None) -> Reports:
    return {owner: report for owner, report in list((reports or {}).items()) if owner() is not None}
