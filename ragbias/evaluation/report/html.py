"""Reports as one self-contained HTML file, with embedded pictures and without scripts or external resources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ragbias.display import printable
from ragbias.evaluation import ACCURACY, LOGPROB
from ragbias.evaluation.measures.aggregates import figures_of
from ragbias.evaluation.measures.bootstrap import LEVEL
from ragbias.evaluation.report import tables
from ragbias.evaluation.report.charts import accuracy_by_cost, flip_rates, logprob_curves, u_curves
from ragbias.evaluation.report.figures import Style, address, styles_of
from ragbias.evaluation.report.read_runs import Run
from ragbias.evaluation.report.tables import Grid
from ragbias.extras import require

require("jinja2", "bench")

from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READING = (
    "Tables are sorted by the worst position, best method first. Position 1 is the first document of the prompt.",
    f"Numbers in small print are {LEVEL}% bootstrap intervals over questions. Differences from the plain model (none) "
    "are paired by question. Intervals of the worst position and of the gap are corrected for bias, because the lowest "
    "of several noisy figures is too low. They are less exact than other intervals.",
    "Flips are counted over the orders in which the gold document moves, and over shuffles if the settings include "
    "them. More orders give more chances to flip. Flips below the noise mean nothing.",
    "An answer that never changes can be wrong each time: flips say nothing without accuracy.",
    "Noise alone makes a gap, because a gap is never negative. Notes below a table list gaps that chance explains.",
    "Cost is the median time to the first token relative to the plain model, timed on the same prompts.",
)
ORACLE = (
    "The documents around the gold one come from a file of gold passages (an oracle file). They belong to other "
    "questions and are easier to tell apart than the official retrieved documents, so accuracies are higher."
)
NUMBERED = (
    "The prompts of mdqa number the documents, as the official prompts do. The numbers reveal the order, so no method "
    "can make the answers independent of it. indices=False removes the numbers."
)
CAPTIONS = {
    "logprob_curves": "Log-probability of the gold answer by the position of the gold document; bands are "
    f"{LEVEL}% intervals, paired by question where the plain model's mean is subtracted. Each row has its own scale.",
    "u_curves": f"Accuracy by the position of the gold document; bands are {LEVEL}% intervals.",
    "cost_accuracy": "Accuracy against cost; grey bars span the lowest and highest timing.",
    "flip_rates": "How often the order of the documents changes the answer, and how often repetition does.",
}


@dataclass(frozen=True)
class Section:
    """A section of a page with optional heading, pictures, tables, paragraphs, list and preformatted text."""

    title: str = ""
    level: int = 2
    figures: Sequence[tuple[str, str]] = ()
    grids: Sequence[Grid] = ()
    text: Sequence[str] = ()
    notes: Sequence[str] = ()
    code: str = ""


def page(title: str, sections: Sequence[Section], lead: tuple[str, str] | None = None) -> str:
    """Render a report as HTML. ``lead`` is the headline and the text of a box at the top."""
    environment = Environment(
        loader=PackageLoader("ragbias.evaluation.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template("page.html.j2").render(title=title, sections=sections, lead=lead)


def as_html(summary: Mapping[str, Any], runs: Sequence[Run]) -> str:
    """Render the report of ``runs``. ``summary`` is the result of ``summary_of(runs)``."""
    styles = styles_of(label for result in summary["results"] for label in result["methods"])
    sections = [Section("How to read this", level=3, notes=list(_reading(summary, runs)))]
    titles = []
    for (model, task), group in groupby(summary["results"], key=lambda result: (result["model"], result["task"])):
        titles.append(f"{task}, model {model}")
        sections.append(Section(titles[-1]))
        for result in group:
            sections += _result(result, styles)
    sections.append(Section("Settings"))
    for run in runs:
        repeated = f", {len(run.noise)} questions repeated" if run.noise else ""
        settings = json.dumps(run.settings, indent=2, ensure_ascii=False) if run.settings else "not recorded"
        name = run.folder.name or str(run.folder)
        sections.append(Section(name, level=3, text=[f"{len(run.records)} answers{repeated}."], code=settings))
    return page("Position bias: " + ", ".join(dict.fromkeys(titles)), sections)


def _reading(summary: Mapping[str, Any], runs: Sequence[Run]) -> Iterator[str]:
    measured = {measure for result in summary["results"] for measure in result["measures"]}
    yield from READING if ACCURACY in measured else READING[:2]
    for measure, legend in tables.LEGENDS.items():
        if measure in measured:
            yield f"{legend[0].upper()}{legend[1:]}"
    if any(map(tables.shows_order, summary["results"])):
        yield f"Order: {tables.ORDER_LEGEND}"
    tasks = [task for run in runs for task in run.settings.get("decides", {}).get("tasks", [])]
    if any("oracle" in str(data.get("file")).lower() for task in tasks for data in task.get("data", [])):
        yield ORACLE
    if any(task.get("name") == "mdqa" and task.get("indices", True) for task in tasks):
        yield NUMBERED


def _result(result: Mapping[str, Any], styles: Mapping[str, Style]) -> Iterator[Section]:
    several = len(result["positions"]) > 1
    figures: dict[str, Figure | None] = {}
    if ACCURACY in result["measures"]:
        figures = {
            "u_curves": u_curves(result, styles) if several else None,
            "cost_accuracy": accuracy_by_cost(result, styles),
            "flip_rates": flip_rates(result),
        }
    if LOGPROB in result["measures"]:
        figures["logprob_curves"] = logprob_curves(result, styles) if several else None
    notes = [*_chance(result), *result["notes"]]
    yield Section(grids=tables.grids(result), notes=notes)
    drawn = [(address(figure, name), CAPTIONS[name]) for name, figure in figures.items() if figure is not None]
    yield Section(figures=drawn, grids=[grid for grid in _more_tables(result) if grid.rows])


def _more_tables(result: Mapping[str, Any]) -> Iterator[Grid]:
    """Yield the tables of figures by position, and by group if the task has groups."""
    positions = [str(position) for position in result["positions"]]
    for name, curves in _curves(result).items():
        rows = [
            [label, *(tables.with_interval(curve.get(position)) for position in positions)]
            for label, curve in curves.items()
        ]
        head = ["method", *(str(int(position) + 1) for position in positions)]
        yield Grid(f"{name} by position of the gold document", head, rows if positions else [])
    methods = tables.ranked(result)
    rows = [
        [
            group or "without a name",
            str(max(method["groups"].get(group, {}).get("questions", 0) for _, method in methods)),
            *(tables.with_interval(method["groups"].get(group, {}).get("mean")) for _, method in methods),
        ]
        for group in sorted({group for _, method in methods for group in method["groups"]})
    ]
    yield Grid("Mean accuracy by group", ["group", "questions", *(label for label, _ in methods)], rows)


def _curves(result: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Collect the figures by position, keyed by title and method."""
    curves: dict[str, dict[str, Mapping[str, Any]]] = {}
    for label, method in tables.ranked(result):
        if ACCURACY in result["measures"]:
            curves.setdefault("Accuracy", {})[label] = method["accuracy_by_position"]
        if figures := method["logprob"]:
            curves.setdefault("Log-probability of the gold answer", {})[label] = figures["by_position"]
            if figures["minus_plain"]:
                relative = figures["minus_plain"]["by_position"]
                curves.setdefault("Log-probability minus the plain model's mean over positions,", {})[label] = relative
    return curves


def _chance(result: Mapping[str, Any]) -> Iterator[str]:
    """Note the gaps that may be due to chance."""
    for measure in result["measures"]:
        figures = {label: figures_of(method, measure) for label, method in tables.ranked(result, measure)}
        within = [
            f"{label} (gap {row['gap'][0]:.2f}, chance {row['gap_by_chance']:.2f})"
            for label, row in figures.items()
            if row and row["gap"] and row["gap"][0] and row["gap"][0] <= row["gap_by_chance"]
        ]
        if within:
            gaps = "Gaps" if measure == ACCURACY else "Gaps of the log-probability"
            listed = "; ".join(within)
            yield f"{gaps} no larger than chance makes them in 95 of 100 runs without position bias: {listed}"
