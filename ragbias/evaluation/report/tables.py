"""The table of methods, best worst position first: for the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ragbias.evaluation.measures.aggregates import REFERENCE
from ragbias.evaluation.measures.bootstrap import LEVEL
from ragbias.evaluation.measures.reward_bench import SECTIONS
from ragbias.evaluation.report.plain_table import plain_table
from ragbias.evaluation.report.plain_text import no_formula, printable

NOTHING = "-"
COST_HEADINGS = {"prefill_ratio": "prefill", "seconds_ratio": "time"}
ORDER_LEGEND = (
    "how alike the orders are in which a method shows the same documents when they come in different orders (Kendall's "
    "tau): 1 always the same, 0 unrelated, -1 reversed. The plain model (none) is shown them as they come, so its "
    "figure is that of the orders given."
)
JUDGE_FIGURES = {
    "swap_consistency": "swap-consistent",
    "prefers_first": "prefers first",
    "accuracy_preferred_first": "right, better one first",
    "accuracy_preferred_second": "right, better one second",
}


def ranked(result: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The methods of a result, the one with the best worst position first; by mean where there are no positions."""

    def rank(item: tuple[str, Mapping[str, Any]]) -> tuple[float, float, str]:
        mean = item[1]["mean"][0]
        worst = item[1]["worst"][0] if item[1]["worst"] else mean
        return -(worst if worst is not None else -1), -(mean if mean is not None else -1), item[0]

    return sorted(result["methods"].items(), key=rank)


def title(result: Mapping[str, Any]) -> str:
    documents = f"{result['documents']} documents" if result["documents"] else "no documents"
    return f"{result['task']}, {documents}, model {result['model']}"


def cost_kind(result: Mapping[str, Any]) -> str | None:
    """What cost means in a result: the timed prefill, or else the time per answer, both in units of none."""
    methods = result["methods"]
    if all(method.get("cost", {}).get("prefill_ratio") for method in methods.values()):
        return "prefill_ratio"
    return "seconds_ratio" if methods.get(REFERENCE, {}).get("seconds") else None


def cost_of(result: Mapping[str, Any], label: str) -> list[float | None] | None:
    """``[median, low, high]`` in units of ``none``, of the kind that ``cost_kind`` says."""
    kind, methods = cost_kind(result), result["methods"]
    if kind == "prefill_ratio":
        return list(methods[label]["cost"]["prefill_ratio"])
    return [methods[label]["seconds"] / methods[REFERENCE]["seconds"], None, None] if kind else None


def reorders(result: Mapping[str, Any]) -> bool:
    """Whether any method puts the documents into an order of its own."""
    return any(method["kendall_tau"] for label, method in result["methods"].items() if label != REFERENCE)


def sections(result: Mapping[str, Any]) -> list[str]:
    """The sections of RewardBench that any method was asked."""
    asked = {
        section for method in result["methods"].values() for section in method.get("judge", {}).get("sections", ())
    }
    return [section for section in SECTIONS if section in asked]


def headings(result: Mapping[str, Any]) -> list[str]:
    label, method = ranked(result)[0]
    return list(_cells(result, label, method, True))


def lines(result: Mapping[str, Any]) -> list[list[str]]:
    """Cells for ``headings``, with intervals."""
    return [list(_cells(result, label, method, True).values()) for label, method in ranked(result)]


def _cells(result: Mapping[str, Any], label: str, method: Mapping[str, Any], intervals: bool) -> dict[str, str]:
    """A method's row, by heading; the headings are the same for all methods of a result."""
    cells = {"method": label}
    for name in ("worst", "mean", "gap"):
        cells[name] = with_interval(method[name], intervals)
    difference = method["difference"] or {}
    for name in ("worst", "mean"):
        cells[f"{name} - {REFERENCE}"] = with_interval(difference.get(name), intervals, "+.2f")
    for heading, name in {"flips": "flip_rate", "noise": "noise_floor"}.items():
        cells[heading] = with_interval(method[name], intervals, ".0%")
    if reorders(result):
        cells["order"] = with_interval(method["kendall_tau"], intervals)
    if kind := cost_kind(result):
        cells[COST_HEADINGS[kind]] = with_interval(cost_of(result, label), intervals, prefix="x")
    if "judge" in method:
        for section in sections(result):
            cells[section] = with_interval(method["judge"]["sections"].get(section), intervals)
        cells["no verdict"] = f"{method['judge']['undecided']:.0%}"
        for name, heading in JUDGE_FIGURES.items():
            cells[heading] = with_interval(method["judge"][name], intervals)
    return cells


def with_interval(
    figure: Sequence[float | None] | None, interval: bool = True, form: str = ".2f", prefix: str = ""
) -> str:
    """``0.71 (0.62 to 0.79)``; without the interval where there is none or none is wanted."""
    if not figure or figure[0] is None:
        return NOTHING
    estimate, low, high = (None if value is None else prefix + _written(value, form) for value in figure)
    return f"{estimate} ({low} to {high})" if interval and low is not None and high is not None else str(estimate)


def _written(value: float, form: str) -> str:
    """Without the minus of a number that is rounded to zero."""
    text = format(value, form)
    return text if text.strip("-0.%") else format(0.0, form)


def as_table(result: Mapping[str, Any]) -> Table:
    """For a terminal of 80 columns: an interval for the worst position only, and no judge's figures."""
    optional = [heading for heading in headings(result) if heading in ("order", *COST_HEADINGS.values())]
    shown = ["mean", "gap", f"worst - {REFERENCE}", "flips", "noise", *optional]
    head = ["method", "worst", f"{LEVEL}%", "mean", "gap", f"vs {REFERENCE}", "flips", "noise", *optional]
    table = plain_table(title(result), *head)
    for label, method in ranked(result):
        cells = _cells(result, label, method, False)
        low, high = method["worst"][1:] if method["worst"] else (None, None)
        interval = NOTHING if low is None else f"{low:.2f}-{high:.2f}".replace("0.", ".")
        table.add_row(*map(Text, (label, cells["worst"], interval, *(cells[heading] for heading in shown))))
    return table


def as_judge_table(result: Mapping[str, Any]) -> Table:
    """What a judge does when the answers are swapped."""
    return _chosen(result, ["no verdict", *JUDGE_FIGURES.values()])


def as_section_table(result: Mapping[str, Any]) -> Table:
    """Accuracy by section of RewardBench."""
    return _chosen(result, sections(result))


def _chosen(result: Mapping[str, Any], shown: Sequence[str]) -> Table:
    """A table of the cells with these headings, without intervals."""
    table = plain_table(title(result), "method", *shown, wrap=True)
    for label, method in ranked(result):
        cells = _cells(result, label, method, False)
        table.add_row(*map(Text, (label, *(cells[heading] for heading in shown))))
    return table


def as_markdown(summary: Mapping[str, Any]) -> str:
    """One table for each result, with intervals, and the notes below it."""
    parts = []
    for result in summary["results"]:
        rows = [headings(result), ["---"] + ["---:"] * (len(headings(result)) - 1), *lines(result)]
        table = "\n".join(f"| {' | '.join(_in_markdown(cell) for cell in row)} |" for row in rows)
        notes = "".join(f"- {_in_markdown(note)}\n" for note in result["notes"])
        parts.append(f"### {_in_markdown(title(result))}\n\n{table}\n" + (f"\n{notes}" if notes else ""))
    return "\n".join(parts)


def _in_markdown(text: str) -> str:
    """One line that no name can break out of."""
    text = " ".join(printable(text).split())
    for character in "\\|<>[]`*":
        text = text.replace(character, "\\" + character)
    return text.replace("_", "\\_")


def as_csv(summary: Mapping[str, Any]) -> str:
    """One line for each method of each result, intervals in columns of their own; positions counted from 0."""
    rows = [_csv_row(result, label, method) for result in summary["results"] for label, method in ranked(result)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    positions = sorted((name for name in names if name.startswith("accuracy_at_")), key=_position)
    written = io.StringIO()
    writer = csv.DictWriter(written, [name for name in names if name not in positions] + positions, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def _position(name: str) -> int:
    return int(name.removeprefix("accuracy_at_").partition("_")[0])


def _csv_row(result: Mapping[str, Any], label: str, method: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": no_formula(result["model"]), "task": no_formula(result["task"])}
    row |= {
        "documents": result["documents"],
        "method": no_formula(label),
        "questions": method["questions"],
        "rows": method["rows"],
    }
    for name in ("mean", "worst", "best", "gap", "flip_rate", "noise_floor"):
        row |= _columns(name, method[name])
    row["gap_by_chance"] = method["gap_by_chance"]
    row |= _columns("kendall_tau", method["kendall_tau"])
    for name, figure in (method["difference"] or {}).items():
        row |= _columns(f"{name}_minus_{REFERENCE}", figure)
    for name in ("prompt_tokens", "completion_tokens", "seconds"):
        row[name] = method[name]
    for name, figure in method.get("cost", {}).items():
        row |= _columns(name, figure)
    if judge := method.get("judge"):
        for name in JUDGE_FIGURES:
            row |= _columns(name, judge[name])
        row["undecided"] = judge["undecided"]
        for section, figure in judge["sections"].items():
            row |= _columns(f"section_{section.lower().replace(' ', '_')}", figure)
    for position, figure in method["accuracy_by_position"].items():
        row |= _columns(f"accuracy_at_{position}", figure)
    return row


def _columns(name: str, figure: Iterable[float | None] | None) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), figure or (None, None, None), strict=True))
