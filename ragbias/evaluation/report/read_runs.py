"""The folders of finished or unfinished runs, read and put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation.data.records import Record, read_records
from ragbias.evaluation.data.run_folder import NOISE, ROWS, Costs, read_about, read_costs
from ragbias.evaluation.measures.aggregates import summarise
from ragbias.evaluation.report.comparable import differences


@dataclass(frozen=True)
class Run:
    """One folder.

    Attributes:
        cost: by ``folder.cost_key`` and method; empty where it was not measured.
        settings: what the run was asked to do, with versions and machine; empty where the file is missing.
    """

    folder: Path
    rows: list[Record]
    noise: list[Record]
    cost: Costs
    settings: dict[str, Any]


def read_run(folder: Path) -> Run:
    """Read a run's folder.

    Raises:
        RunError: no folder of a run, or nothing is answered yet.
        DataError: a file in it is of another format.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder; expected the --out folder of a bench")
    if not (folder / ROWS).is_file():
        raise RunError(f"{folder} holds no {ROWS}; expected the --out folder of a bench")
    rows = read_records(folder / ROWS)
    if not rows:
        raise RunError(f"{folder / ROWS} holds no answers yet; run the bench again, it goes on where it stopped")
    noise = read_records(folder / NOISE) if (folder / NOISE).is_file() else []
    return Run(folder, rows, noise, read_costs(folder), read_about(folder))


def summary_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The aggregates of all runs together, as ``summarise`` gives them; what their settings differ in is noted.

    Raises:
        RunError: two runs hold the same method on the same model, task and number of documents, or they asked other
            questions of the same task; names both folders.
    """
    refuse_clashes(runs)
    cost: Costs = {}
    for run in runs:
        for setting, methods in run.cost.items():
            cost[setting] = {**cost.get(setting, {}), **methods}
    rows, noise = [row for run in runs for row in run.rows], [row for run in runs for row in run.noise]
    summary = summarise(rows, cost, noise)
    for result in summary["results"]:
        result["notes"] += _differences(runs, (result["model"], result["task"], result["documents"]))
    return summary


def _differences(runs: Sequence[Run], setting: tuple[str, str, int]) -> list[str]:
    """What the runs that hold a model, task and number of documents differ in, each from the first of them."""
    first, *others = [run for run in runs if any((row.model, row.task, row.documents) == setting for row in run.rows)]
    return [
        note
        for other in others
        for note in differences((first.folder, first.settings), (other.folder, other.settings), setting[1])
    ]


def refuse_clashes(runs: Sequence[Run]) -> None:
    owners: dict[tuple[str, str, int, str], Path] = {}
    for run in runs:
        for setting in dict.fromkeys((row.model, row.task, row.documents, row.method) for row in run.rows):
            first = owners.setdefault(setting, run.folder)
            if first is not run.folder:
                model, task, documents, method = setting
                raise RunError(
                    f"{first} and {run.folder} both hold {method!r} for model {model!r}, task {task!r} and {documents} "
                    "documents; report them one by one"
                )
