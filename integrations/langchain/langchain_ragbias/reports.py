"""The last report of each model, and the run that a request belongs to: an outermost one starts with no reports."""

from __future__ import annotations

from uuid import UUID

from langchain_core.callbacks import BaseRunManager
from langchain_core.runnables.config import ensure_config

from ragbias.adapters.last_report import LastReports

reports = LastReports("langchain_ragbias_reports")


def parent_run(run_manager: BaseRunManager | None) -> UUID | None:
    """The run that this request belongs to; LangChain gives streams no run manager, but their context has a config."""
    if run_manager is not None:
        return run_manager.parent_run_id
    return getattr(ensure_config().get("callbacks"), "parent_run_id", None)


def begun(run_manager: BaseRunManager | None) -> UUID | None:
    """``parent_run`` of a request that begins here; one without a parent starts with no reports."""
    parent = parent_run(run_manager)
    if parent is None:
        reports.clear()
    return parent
