"""Reading the folders of finished or unfinished runs, and combining them into one summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation.data.records import Record, read_records
from ragbias.evaluation.data.run_folder import NOISE, ROWS, Costs, packed, read_about, read_costs, records_file
from ragbias.evaluation.measures.aggregates import Setting, setting_of, summarise
from ragbias.evaluation.report.comparable import differences


@dataclass(frozen=True)
class Run:
    """A run, as read from its folder.

    Attributes:
        cost: by ``run_folder.cost_key`` and label; empty where it was not measured.
        settings: what the run was asked to do, with versions and machine; empty where the file is missing.
    """

    folder: Path
    records: list[Record]
    noise: list[Record]
    cost: Costs
    settings: dict[str, Any]


def read_run(folder: Path) -> Run:
    """Read a run's folder, its answers compressed or not.

    Raises:
        RunError: no folder of a run, nothing is answered yet, or answers are there both compressed and not.
        DataError: a file in it is of another format.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder; expected the --out folder of a bench")
    rows, again = records_file(folder, ROWS), records_file(folder, NOISE)
    if rows is None:
        raise RunError(f"{folder} holds no {ROWS} or {packed(folder, ROWS).name}; expected the --out folder of a bench")
    records = read_records(rows)
    if not records:
        raise RunError(f"{rows} holds no answers yet; run the bench again, it goes on where it stopped")
    noise = read_records(again) if again else []
    return Run(folder, records, noise, read_costs(folder), read_about(folder))


def summary_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The aggregates of all runs together, as ``summarise`` gives them; what their settings differ in is noted.

    Raises:
        RunError: two runs hold the same method on the same model, task and number of documents, or they asked other
            questions of the same task; names both folders.
    """
    _refuse_clashes(runs)
    cost: Costs = {}
    for run in runs:
        for setting, methods in run.cost.items():
            cost[setting] = {**cost.get(setting, {}), **methods}
    records = [record for run in runs for record in run.records]
    noise = [record for run in runs for record in run.noise]
    summary = summarise(records, cost, noise)
    for result in summary["results"]:
        result["notes"] += _differences(runs, (result["model"], result["task"], result["documents"]))
    return summary


def _differences(runs: Sequence[Run], setting: Setting) -> list[str]:
    """What the runs that hold a model, task and number of documents differ in, each from the first of them."""
    first, *others = [run for run in runs if setting in map(setting_of, run.records)]
    return [
        note
        for other in others
        for note in differences((first.folder, first.settings), (other.folder, other.settings), setting[1])
    ]


def _refuse_clashes(runs: Sequence[Run]) -> None:
    owners: dict[tuple[Setting, str], Path] = {}
    for run in runs:
        for key in dict.fromkeys((setting_of(record), record.method) for record in run.records):
            first = owners.setdefault(key, run.folder)
            if first is not run.folder:
                (model, task, documents), method = key
                raise RunError(
                    f"{first} and {run.folder} both hold {method!r} for model {model!r}, task {task!r} and {documents} "
                    "documents; report them one by one"
                )
