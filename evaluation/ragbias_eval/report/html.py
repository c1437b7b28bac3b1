"""Render reports as self-contained HTML pages, without scripts or external resources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from ragbias.data.intervals import LEVEL, format_figure
from ragbias.display import printable
from ragbias_eval import ACCURACY, LOGPROB, REFERENCE
from ragbias_eval.measures.aggregates import figures_of
from ragbias_eval.report import figures, tables
from ragbias_eval.report.figures import Style
from ragbias_eval.report.tables import Grid
from ragbias_eval.runs import Run

READING_NOTES = (
    "Tables are sorted by the worst position, best method first. Position 1 is the first document of the prompt.",
    f"Numbers in small print are {LEVEL}% bootstrap intervals over questions. Differences from the plain model (none) "
    f"are paired by question. mean - {REFERENCE}'s worst and best: the method's mean over positions minus the plain "
    "model's worst and best position. Intervals of the worst position and of the gap are corrected for bias, because "
    "the lowest of several noisy figures is too low. Corrected intervals are less exact.",
    "Flips compare all orders of a question: positions of the gold document and, depending on the settings, shuffles. "
    "With more orders, more answers flip. A flip rate below the noise means nothing.",
    "An answer that never changes can still be wrong, so read flips together with accuracy.",
    "A gap is never negative, so noise alone causes a gap. Notes below a table list gaps that chance can explain.",
    "Cost is the median time to the first token, relative to the plain model on the same prompts.",
)
ORACLE = (
    "The distractors come from a file of gold passages (an oracle file). They belong to other questions and are easier "
    "to rule out than the official retrieved documents, so accuracies are higher."
)
NUMBERED = (
    "The prompts of mdqa number the documents, as the official prompts do. The numbers reveal the order, so no method "
    "can make the answers order-invariant. indices=False removes the numbers."
)
CURVE_TITLES = {
    ACCURACY: "Accuracy",
    figures.LOGPROB: "Log-probability of the gold answer",
    figures.RELATIVE_LOGPROB: "Log-probability minus the plain model's mean over positions,",
}
CAPTIONS = {
    LOGPROB: "Log-probability of the gold answer by position of the gold document; bands are "
    f"{LEVEL}% intervals, paired by question where the plain model's mean is subtracted. Each row has its own scale.",
    ACCURACY: f"Accuracy by position of the gold document; bands are {LEVEL}% intervals.",
    "cost": "Accuracy against cost; grey bars span the lowest and highest timing.",
}


@dataclass(frozen=True)
class Section:
    """A section of a page. ``figures`` are pairs of URL and caption. ``code`` is preformatted text."""

    title: str = ""
    level: int = 2
    figures: Sequence[tuple[str, str]] = ()
    grids: Sequence[Grid] = ()
    text: Sequence[str] = ()
    notes: Sequence[str] = ()
    code: str = ""


def render_page(title: str, sections: Sequence[Section], lead: tuple[str, str] | None = None) -> str:
    """Render a page as HTML. ``lead`` has the headline and the text of a box at the top."""
    environment = Environment(
        loader=PackageLoader("ragbias_eval.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template("page.html.j2").render(title=title, sections=sections, lead=lead)


def as_html(summary: Mapping[str, Any], runs: Sequence[Run]) -> str:
    """Render the report of bench runs. ``summary`` is the result of ``summarise_runs(runs)``."""
    styles = figures.make_styles(label for result in summary["results"] for label in result["methods"])
    sections = [Section("How to read this", level=3, notes=list(_reading_notes(summary, runs)))]
    titles = []
    for (model, task), group in groupby(summary["results"], key=lambda result: (result["model"], result["task"])):
        titles.append(f"{task}, model {model}")
        sections.append(Section(titles[-1]))
        for result in group:
            sections += _result_sections(result, styles)
    sections.append(Section("Settings"))
    for run in runs:
        repeated = f", {len(run.noise)} questions repeated" if run.noise else ""
        settings = json.dumps(run.settings, indent=2, ensure_ascii=False) if run.settings else "not recorded"
        name = run.folder.name or str(run.folder)
        sections.append(Section(name, level=3, text=[f"{len(run.records)} answers{repeated}."], code=settings))
    return render_page("Position bias: " + ", ".join(dict.fromkeys(titles)), sections)


def _reading_notes(summary: Mapping[str, Any], runs: Sequence[Run]) -> Iterator[str]:
    measured = {measure for result in summary["results"] for measure in result["measures"]}
    yield from READING_NOTES if ACCURACY in measured else READING_NOTES[:2]
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


def _result_sections(result: Mapping[str, Any], styles: Mapping[str, Style]) -> Iterator[Section]:
    drawn: dict[str, Figure | None] = {}
    if len(result["positions"]) > 1:
        drawn = {measure: figures.draw_curves(result, styles, measure) for measure in result["measures"]}
    if ACCURACY in result["measures"]:
        drawn["cost"] = figures.draw_accuracy_by_cost(result, styles)
    yield Section(grids=tables.build_grids(result), notes=[*_chance_notes(result), *result["notes"]])
    pictures = [
        ("data:image/svg+xml," + quote(figures.render_svg(figure, name), safe=" /:;,="), CAPTIONS[name])
        for name, figure in drawn.items()
        if figure is not None
    ]
    yield Section(figures=pictures, grids=[grid for grid in _detail_tables(result) if grid.rows])


def _detail_tables(result: Mapping[str, Any]) -> Iterator[Grid]:
    """Yield tables of results by position, and by group. A table without data has no rows."""
    positions = [str(position) for position in result["positions"]]
    for scale, curves in figures.curves_by_scale(result).items():
        rows = [
            [label, *(format_figure(curve.get(position)) for position in positions)] for label, curve in curves.items()
        ]
        head = ["method", *(str(int(position) + 1) for position in positions)]
        yield Grid(f"{CURVE_TITLES[scale]} by position of the gold document", head, rows if positions else [])
    groups = {label: method["groups"] for label, method in tables.rank_methods(result)}
    rows = []
    for name in sorted({name for by_name in groups.values() for name in by_name}):
        found = [by_name.get(name, {}) for by_name in groups.values()]
        questions = max(group.get("questions", 0) for group in found)
        rows.append([name or "without a name", str(questions), *(format_figure(group.get("mean")) for group in found)])
    yield Grid("Mean accuracy by group", ["group", "questions", *groups], rows)


def _chance_notes(result: Mapping[str, Any]) -> Iterator[str]:
    for measure in result["measures"]:
        within = []
        for label, method in tables.rank_methods(result, measure):
            row = figures_of(method, measure)
            gap = row["gap"][0] if row and row["gap"] else None
            if gap and gap <= row["gap_by_chance"]:
                within.append(f"{label} (gap {gap:.2f}, chance {row['gap_by_chance']:.2f})")
        if within:
            gaps = "Gaps" if measure == ACCURACY else "Gaps of the log-probability"
            yield f"{gaps} that chance alone can explain (95% level): {'; '.join(within)}"
