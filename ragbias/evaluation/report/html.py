"""The report as one self-contained HTML file: figures embedded, no scripts, nothing fetched from elsewhere."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ragbias.display import printable
from ragbias.evaluation.measures.bootstrap import LEVEL
from ragbias.evaluation.measures.estimates import figures_of
from ragbias.evaluation.names import ACCURACY, LOGPROB
from ragbias.evaluation.report import tables
from ragbias.evaluation.report.figures.accuracy_by_cost import accuracy_by_cost
from ragbias.evaluation.report.figures.depth_maps import depth_maps
from ragbias.evaluation.report.figures.flip_rates import flip_rates
from ragbias.evaluation.report.figures.position_curves import logprob_curves, u_curves
from ragbias.evaluation.report.looks import Look, looks_of
from ragbias.evaluation.report.read_runs import Run
from ragbias.extras import required

required("jinja2", "bench")

import matplotlib  # noqa: E402
from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

READING = (
    "Tables are sorted by accuracy at the worst position, the best first. Positions are counted from 1, the document "
    "next to the start of the prompt.",
    f"Numbers in small print are {LEVEL}% bootstrap intervals over questions; differences to the plain model (none) "
    "are paired, on the same questions. Those of the worst position and of the gap are corrected for bias: of several "
    "noisy accuracies the lowest is too low. They are the roughest.",
    "Flips: the share of questions whose answer is not the same in all orders of the same documents. The orders are "
    "those that moving the gold document makes, and the shuffles, if the settings ask for any. More orders give more "
    "chances to flip.",
    "Noise: the share of questions whose answer changes when the same prompt is asked twice; flips below it mean "
    "nothing. Each prompt is asked two times for it, and once for each order for the flips.",
    "An answer that never changes can be wrong each time: flips say nothing without accuracy.",
    "A gap is never negative, so noise alone makes one; the notes below a table name gaps that chance makes as well.",
    "Cost is the median in units of the plain model, timed beside it on the same prompts; where a method was not timed "
    "like this, its wall time per answer, in units of that of the plain model, stands for it. That is rough, and means "
    "little where the plain model's answers come from another run on another machine.",
)
ORACLE = (
    "The documents around the gold one are drawn from a file of gold passages (an oracle file): they belong to other "
    "questions and are easier to tell apart than the official retrieved ones, so accuracies are higher than official."
)
NUMBERED = (
    "The prompts of mdqa number the documents, as the official ones do. The numbers tell the model the order, so no "
    "method can make its answers independent of it; indices=False leaves them out."
)
CAPTIONS = {
    "logprob_curves": "Log-probability of the gold answer by the position of the gold document; bands are "
    f"{LEVEL}% intervals, paired by question where the plain model's mean is taken off.",
    "u_curves": f"Accuracy by the position of the gold document; bands are {LEVEL}% intervals.",
    "cost_accuracy": "Accuracy against cost; grey bars span the lowest and highest timing. No method is both cheaper "
    "and better than one on the dashed line.",
    "flip_rates": "How often the order of the documents changes the answer, beside how often nothing does.",
    "heat_maps": "Accuracy by the depth of the gold document (0%: first, 100%: last) and the number of documents.",
}

# figures are laid out for DejaVu Sans; Verdana, about as wide, is on most machines that do not have it
FONTS = ["DejaVu Sans", "Verdana"]


def as_html(summary: Mapping[str, Any], runs: Sequence[Run]) -> str:
    """The report of ``runs``; ``summary`` is what ``summary_of`` gives for them."""
    environment = Environment(
        loader=PackageLoader("ragbias.evaluation.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
    )
    looks = looks_of(label for result in summary["results"] for label in result["methods"])
    parts = [
        {"title": f"{task}, model {model}", **_part(list(results), looks)}
        for (model, task), results in groupby(summary["results"], key=lambda result: (result["model"], result["task"]))
    ]
    return environment.get_template("template.html.j2").render(
        heading="Position bias: " + ", ".join(dict.fromkeys(part["title"] for part in parts)),
        reading=[
            *(READING if _measured(summary, ACCURACY) else READING[:2]),
            *(
                f"{legend[0].upper()}{legend[1:]}"
                for measure, legend in tables.LEGENDS.items()
                if _measured(summary, measure)
            ),
            *([f"Order: {tables.ORDER_LEGEND}"] if any(map(tables.shows_order, summary["results"])) else []),
            *([ORACLE] if any(_from_oracle(run.settings) for run in runs) else []),
            *([NUMBERED] if any(_numbered(run.settings) for run in runs) else []),
        ],
        parts=parts,
        runs=[
            {
                "folder": run.folder.name or str(run.folder),
                "answers": len(run.records),
                "noise": len(run.noise),
                "settings": json.dumps(run.settings, indent=2, ensure_ascii=False) if run.settings else "not recorded",
            }
            for run in runs
        ],
    )


def _part(results: list[Mapping[str, Any]], looks: Mapping[str, Look]) -> dict[str, Any]:
    return {
        "results": [_result(result, looks) for result in results],
        "figures": _shown({"heat_maps": depth_maps(results)}),
    }


def _result(result: Mapping[str, Any], looks: Mapping[str, Look]) -> dict[str, Any]:
    several = len(result["positions"]) > 1
    figures = {}
    if ACCURACY in result["measures"]:
        figures = {
            "u_curves": u_curves(result, looks) if several else None,
            "cost_accuracy": accuracy_by_cost(result, looks),
            "flip_rates": flip_rates(result),
        }
    if LOGPROB in result["measures"]:
        figures["logprob_curves"] = logprob_curves(result, looks) if several else None
    return {
        "grids": [{"title": name, "headings": head, "lines": body} for name, head, body in tables.grids(result)],
        "notes": [*_chance(result), *_reference_lines(result), *result["notes"]],
        "figures": _shown(figures),
        "tables": [
            {"title": name, "headings": head, "lines": body} for name, head, body in _more_tables(result) if body
        ],
    }


def _more_tables(result: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Accuracy by position, and by group where the task has groups."""
    methods = tables.ranked(result)
    positions = [str(position) for position in result["positions"]]
    for name, curves in _curves(result).items():
        yield (
            f"{name} by position of the gold document",
            ["method", *(str(int(position) + 1) for position in positions)],
            [
                [label, *(tables.with_interval(curve.get(position)) for position in positions)]
                for label, curve in curves.items()
            ]
            if positions
            else [],
        )
    groups = sorted({group for _, method in methods for group in method["groups"]})
    yield (
        "Mean accuracy by group",
        ["group", "questions", *(label for label, _ in methods)],
        [
            [
                group or "without a name",
                str(max(method["groups"].get(group, {}).get("questions", 0) for _, method in methods)),
                *(tables.with_interval(method["groups"].get(group, {}).get("mean")) for _, method in methods),
            ]
            for group in groups
        ],
    )


def _curves(result: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """By the name of what is shown and by method: the figures by position."""
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


def _chance(result: Mapping[str, Any]) -> list[str]:
    """Which gaps noise would make as well."""
    notes = []
    for measure in result["measures"]:
        figures = {label: figures_of(method, measure) for label, method in tables.ranked(result, measure)}
        within = [
            f"{label} (gap {each['gap'][0]:.2f}, chance {each['gap_by_chance']:.2f})"
            for label, each in figures.items()
            if each and each["gap"] and each["gap"][0] and each["gap"][0] <= each["gap_by_chance"]
        ]
        if within:
            of = "Gaps" if measure == ACCURACY else "Gaps of the log-probability"
            notes.append(
                f"{of} that are no larger than chance makes them in 95 of 100 runs without any position bias: "
                + "; ".join(within)
            )
    return notes


def _reference_lines(result: Mapping[str, Any]) -> list[str]:
    names = {"closed_book": "without documents", "oracle": "with the gold document alone"}
    return [
        f"{measure} of the model {names[name]}: {tables.with_interval(figure)}."
        for measure, key in (("Accuracy", "reference_lines"), ("Log-probability", "logprob_reference_lines"))
        for name, figure in result[key].items()
        if figure
    ]


def _measured(summary: Mapping[str, Any], measure: str) -> bool:
    return any(measure in result["measures"] for result in summary["results"])


def _shown(made: Mapping[str, Figure | None]) -> list[dict[str, str]]:
    return [
        {"source": address(figure, name), "caption": CAPTIONS[name]}
        for name, figure in made.items()
        if figure is not None
    ]


def finalized(value: Any) -> Any:
    """What a template shows; of text only what can be printed."""
    return printable(value) if type(value) is str else value


def address(figure: Figure, name: str) -> str:
    """The figure as a data address; the same figure always gives the same one.

    Its words are text, since letters drawn as paths, in base64, nearly double a report.
    """
    written = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.sans-serif": FONTS}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    lines = (line.strip() for line in written.getvalue().decode().splitlines())
    return "data:image/svg+xml," + quote(" ".join(lines), safe=" /:;,=")


def _from_oracle(settings: Any) -> bool:
    """Whether anything in the settings is the name of an oracle file."""
    if isinstance(settings, Mapping):
        return any(_from_oracle(value) for value in settings.values())
    if isinstance(settings, list):
        return any(_from_oracle(value) for value in settings)
    return isinstance(settings, str) and ".jsonl" in settings and "oracle" in Path(settings).name.lower()


def _numbered(settings: Mapping[str, Any]) -> bool:
    """Whether the settings, as a bench writes them, ask for the numbered prompts of mdqa."""
    tasks = settings.get("decides", {}).get("tasks", [])
    return any(task.get("name") == "mdqa" and task.get("indices", True) for task in tasks)
