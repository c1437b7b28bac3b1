"""Combine bench runs, finished or not, into one summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from ragbias.errors import RunError
from ragbias_eval import ACCURACY
from ragbias_eval.measures.aggregates import Setting, minus_plain, setting_of, summarise_records
from ragbias_eval.measures.bootstrap import Scores
from ragbias_eval.measures.per_question import group_by
from ragbias_eval.report.tables import format_title
from ragbias_eval.runs import Costs, Run

# task options that change the prompts
PROMPT_OPTIONS = "indices", "chat", "shorten", "explain", "letters", "seed"
MAY_DIFFER = ("models", "methods", "tasks", "name")  # settings that may differ between the runs of a report


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
    if label not in result["methods"]:
        known = ", ".join(map(repr, result["methods"]))
        raise RunError(f"{label!r} was not run for {format_title(result)}; expected one of {known}")
    setting = result["model"], result["task"], result["documents"]
    records = [record for run in runs for record in run.records if setting_of(record) == setting]
    by_measure = {}
    for measure in result["measures"]:
        field, most = ("score", 1.0) if measure == ACCURACY else (measure, math.inf)
        scores = {name: Scores.of(part, field) for name, part in group_by(records, attrgetter("method")).items()}
        minus = {}
        for name in scores:
            figures = minus_plain(scores[name], scores[label], most) if name != label else None
            if figures:
                minus[name] = {"mean": figures["mean"], "worst": figures["worst_to_worst"]}
        by_measure[measure] = dict(sorted(minus.items(), key=lambda item: -item[1]["mean"][0]))
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
        return [f"{first.folder} or {second.folder} has no recorded settings, so the runs may not be comparable."]
    one = _select_settings(first, task)
    two = _select_settings(second, task)
    notes = []
    for name in sorted({*one, *two}):
        if one.get(name) == two.get(name):
            continue
        values = one.get(name, "the default"), two.get(name, "the default")
        difference = f"{name}: {values[0]!r} in {first.folder}, {values[1]!r} in {second.folder}"
        if name in PROMPT_OPTIONS or (name == "data" and set(values[0]).isdisjoint(values[1])):
            raise RunError(f"the prompts of task {task!r} differ between runs in {difference}; report them separately")
        notes.append(f"The runs differ in {difference}; this may cause differences between methods.")
    return notes


def _select_settings(run: Run, task: str) -> dict[str, Any]:
    """Select the settings of a run, and the options of one task. Data files are given by name and hash."""
    decides = run.settings["decides"]
    options: dict[str, Any] = next((options for options in decides.get("tasks", []) if options["name"] == task), {})
    selected = {**decides, **options}
    if "data" in options:
        selected["data"] = [f"{file['file']} ({file['sha256'][:8]})" for file in options["data"]]
    return {name: value for name, value in selected.items() if name not in MAY_DIFFER}
