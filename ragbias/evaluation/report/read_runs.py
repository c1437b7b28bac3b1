"""Read the folders of runs, finished or not, and combine them into one summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation import ACCURACY
from ragbias.evaluation.data.records import Record, read_records
from ragbias.evaluation.data.run_folder import NOISE, ROWS, Costs, packed, read_about, read_costs, records_file
from ragbias.evaluation.measures import estimates
from ragbias.evaluation.measures.aggregates import Setting, answered, setting_of, summarise
from ragbias.evaluation.measures.bootstrap import Scores
from ragbias.evaluation.measures.per_question import grouped
from ragbias.evaluation.report.tables import title

# options of a task that change its prompts
OTHER_PROMPTS = "indices", "chat", "shorten", "explain", "letters", "cut_middle", "seed", "include_path", "tasks"
FIGURES = {"mean": ("mean", "mean"), "worst": ("worst", "worst")}  # over positions, of differences to any method
EXPECTED = ("models", "methods", "tasks")  # keys that may differ between runs reported together


@dataclass(frozen=True)
class Run:
    """A run, as read from its folder; costs and settings are empty where they are missing."""

    folder: Path
    records: list[Record]
    noise: list[Record]
    cost: Costs
    settings: dict[str, Any]


def read_run(folder: Path) -> Run:
    """Read a run's folder, its answers compressed or not; raises ``RunError`` where there are none."""
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder; expected the --out folder of a bench")
    rows, again = records_file(folder, ROWS), records_file(folder, NOISE)
    if rows is None:
        raise RunError(f"{folder} holds no {ROWS} or {packed(folder, ROWS).name}; expected the --out folder of a bench")
    records = read_records(rows)
    if not records:
        raise RunError(f"{rows} holds no answers yet; run the bench again, it resumes where it stopped")
    noise = read_records(again) if again else []
    return Run(folder, records, noise, read_costs(folder), read_about(folder))


def summary_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The aggregates of all runs together, see ``summarise``, with notes on differences of their settings.

    Raises ``RunError`` where two runs hold the same method in the same setting, or their prompts of a task differ.
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
        measured = result["model"], result["task"], result["documents"]
        first, *others = [run for run in runs if measured in map(setting_of, run.records)]
        for other in others:
            result["notes"] += _differences(first, other, result["task"])
    return summary


def minus_method(result: Mapping[str, Any], runs: Sequence[Run], label: str) -> dict[str, dict[str, Any]]:
    """By measure and method ``{"mean": ..., "worst": ...}`` minus that of ``label``, paired; the best mean first."""
    setting = result["model"], result["task"], result["documents"]
    records = [record for run in runs for record in run.records if setting_of(record) == setting]
    if label not in result["methods"]:
        known = ", ".join(map(repr, result["methods"]))
        raise RunError(f"{label!r} was not run for {title(result)}; expected one of {known}")
    found = {}
    for measure in result["measures"]:
        own = answered(records) if measure == ACCURACY else records
        field, most = ("score", 1.0) if measure == ACCURACY else (measure, math.inf)
        scores = {name: Scores.of(part, field) for name, part in grouped(own, attrgetter("method")).items()}
        minus = {
            name: figures
            for name, each in scores.items()
            if name != label
            and label in scores
            and (figures := estimates.differences(each, scores[label], FIGURES, most))
        }
        found[measure] = dict(
            sorted(minus.items(), key=lambda item: math.inf if item[1]["mean"][0] is None else -item[1]["mean"][0])
        )
    return found


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


def _differences(first: Run, second: Run, task: str) -> list[str]:
    """One note for each setting in which two runs of a task differ; raises ``RunError`` if their prompts do."""
    (here, own), (there, other) = (first.folder, first.settings), (second.folder, second.settings)
    if not own or not other:
        unknown = " and ".join(str(each.folder) for each in (first, second) if not each.settings)
        return [f"The settings of {unknown} are not recorded, so the runs may not be comparable."]
    decided = [
        {name: each for name, each in about["decides"].items() if name not in EXPECTED} for about in (own, other)
    ]
    options = [_options(own, task), _options(other, task)]
    data = [{file["sha256"] for file in each.get("data", []) if "sha256" in file} for each in options]
    if all(data) and not data[0] & data[1]:
        raise RunError(f"the data of task {task!r} differ between {here} and {there}; report them one by one")
    notes = []
    for one, two in (decided, options):
        for name in sorted(name for name in {*one, *two} if one.get(name) != two.get(name)):
            mine, others = _short(one, name), _short(two, name)
            if one is options[0] and name in OTHER_PROMPTS:
                raise RunError(
                    f"the prompts of task {task!r} differ between {here} and {there}: {name} is {mine!r} in one and "
                    f"{others!r} in the other; report them one by one"
                )
            notes.append(
                f"The runs differ in {name}: {mine!r} in {here}, {others!r} in {there}; differences may come from that."
            )
    return notes


def _options(about: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """The options of a task; for a task of lm-eval those of the entry that runs it."""
    tasks = about["decides"].get("tasks", [])
    return next((each for each in tasks if task in (each.get("name"), *each.get("tasks", []))), {})


def _short(options: Mapping[str, Any], name: str) -> Any:
    """An option's value; files by their names."""
    if name != "data":
        return options.get(name, "the default")
    return [f"{file.get('file')} ({str(file.get('sha256'))[:8]})" for file in options.get(name, [])]
