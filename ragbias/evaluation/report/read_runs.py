"""Read the folders of bench runs, finished or not, and combine them into one summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation import ACCURACY
from ragbias.evaluation.measures.aggregates import Setting, minus_plain, scored_records, setting_of, summarise_records
from ragbias.evaluation.measures.bootstrap import Scores
from ragbias.evaluation.measures.per_question import group_by
from ragbias.evaluation.report.tables import format_title
from ragbias.evaluation.runs import (
    NOISE,
    ROWS,
    Costs,
    Record,
    find_records_file,
    read_costs,
    read_records,
    read_run_description,
)

# task options that change the prompts
PROMPT_OPTIONS = "indices", "chat", "shorten", "explain", "letters", "seed"
MAY_DIFFER = ("models", "methods", "tasks")  # settings that may differ between the runs of a report


@dataclass(frozen=True)
class Run:
    """The content of a run's folder. ``cost`` and ``settings`` are empty if their files are missing."""

    folder: Path
    records: list[Record]
    noise: list[Record]
    cost: Costs
    settings: dict[str, Any]


def read_run(folder: Path) -> Run:
    """Read the folder of a run. Raise ``RunError`` if it has no answers."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; expected the --out folder of a bench")
    rows, again = find_records_file(folder, ROWS), find_records_file(folder, NOISE)
    if rows is None:
        raise RunError(f"{folder} has no {ROWS} or {ROWS}.gz; expected the --out folder of a bench")
    records = read_records(rows)
    if not records:
        raise RunError(f"{rows} contains no answers yet; run the bench again to resume it")
    noise = read_records(again) if again else []
    return Run(folder, records, noise, read_costs(folder), read_run_description(folder))


def summarise_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """Combine runs into one summary, see ``summarise_records``. Its notes name the settings that differ between runs.

    Raise ``RunError`` if two runs measured the same method on the same task, or have different prompts for a task.
    """
    _check_no_clashes(runs)
    cost: Costs = {}
    for run in runs:
        for key, methods in run.cost.items():
            cost[key] = {**cost.get(key, {}), **methods}
    records = [record for run in runs for record in run.records]
    noise = [record for run in runs for record in run.noise]
    summary = summarise_records(records, cost, noise)
    for result in summary["results"]:
        setting = result["model"], result["task"], result["documents"]
        first, *others = [run for run in runs if setting in map(setting_of, run.records)]
        for other in others:
            result["notes"] += _compare_settings(first, other, result["task"])
    return summary


def differences_from(result: Mapping[str, Any], runs: Sequence[Run], label: str) -> dict[str, dict[str, Any]]:
    """Compute each method's paired differences from the method ``label``, by measure. The best method is first."""
    setting = result["model"], result["task"], result["documents"]
    records = [record for run in runs for record in run.records if setting_of(record) == setting]
    if label not in result["methods"]:
        known = ", ".join(map(repr, result["methods"]))
        raise RunError(f"{label!r} was not run for {format_title(result)}; expected one of {known}")
    by_measure = {}
    for measure in result["measures"]:
        measured = scored_records(records) if measure == ACCURACY else records
        field, most = ("score", 1.0) if measure == ACCURACY else (measure, math.inf)
        scores = {name: Scores.of(part, field) for name, part in group_by(measured, attrgetter("method")).items()}
        minus = {
            name: {"mean": figures["mean"], "worst": figures["worst_to_worst"]}
            for name, method_scores in scores.items()
            if name != label and label in scores and (figures := minus_plain(method_scores, scores[label], most))
        }
        by_measure[measure] = dict(
            sorted(minus.items(), key=lambda item: math.inf if item[1]["mean"][0] is None else -item[1]["mean"][0])
        )
    return by_measure


def _check_no_clashes(runs: Sequence[Run]) -> None:
    owners: dict[tuple[Setting, str], Path] = {}
    for run in runs:
        for key in dict.fromkeys((setting_of(record), record.method) for record in run.records):
            first = owners.setdefault(key, run.folder)
            if first is not run.folder:
                (model, task, documents), method = key
                raise RunError(
                    f"{first} and {run.folder} both hold {method!r} for model {model!r}, task {task!r} and {documents} "
                    "documents; report them separately"
                )


def _compare_settings(first: Run, second: Run, task: str) -> list[str]:
    """Describe the settings of a task that differ between two runs. Raise ``RunError`` if their prompts differ."""
    if not first.settings or not second.settings:
        unknown = " and ".join(str(run.folder) for run in (first, second) if not run.settings)
        return [f"The settings of {unknown} are not recorded, so the runs may not be comparable."]
    runs, folders = (first, second), f"{first.folder} and {second.folder}"
    decided = [{key: value for key, value in run.settings["decides"].items() if key not in MAY_DIFFER} for run in runs]
    every = [run.settings["decides"].get("tasks", []) for run in runs]
    options: list[dict[str, Any]] = [next((one for one in tasks if one.get("name") == task), {}) for tasks in every]
    data = [{file["sha256"] for file in task_options.get("data", []) if "sha256" in file} for task_options in options]
    if all(data) and not data[0] & data[1]:
        raise RunError(f"the data of task {task!r} differ between {folders}; report them separately")
    notes = []
    for one, two in (decided, options):
        for name in sorted(name for name in {*one, *two} if one.get(name) != two.get(name)):
            values = _format_option(one, name), _format_option(two, name)
            if one is options[0] and name in PROMPT_OPTIONS:
                raise RunError(
                    f"the prompts of task {task!r} differ between {folders}: {name} is {values[0]!r} in one and "
                    f"{values[1]!r} in the other; report them separately"
                )
            notes.append(
                f"The runs differ in {name}: {values[0]!r} in {first.folder}, {values[1]!r} in {second.folder}; "
                "this may cause differences between methods."
            )
    return notes


def _format_option(options: Mapping[str, Any], name: str) -> Any:
    """Format the value of an option for a message. A data file becomes its name and the start of its hash."""
    if name != "data":
        return options.get(name, "the default")
    return [f"{file.get('file')} ({str(file.get('sha256'))[:8]})" for file in options.get(name, [])]
