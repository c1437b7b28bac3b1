"""The tables of methods, best worst position first: for the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ragbias.evaluation.measures.aggregates import REFERENCE
from ragbias.evaluation.measures.bootstrap import LEVEL
from ragbias.evaluation.measures.reward_bench import SECTIONS
from ragbias.evaluation.names import ACCURACY, LOGPROB
from ragbias.evaluation.report.plain_table import plain_table
from ragbias.evaluation.report.plain_text import no_formula, printable

NOTHING = "-"
LOGPROB_TITLE = "log-probability of the gold answer, in nats"
LOGPROB_LEGEND = (
    "log-probability: natural logarithm of the probability of the gold answer after the prompt, summed over its "
    "tokens, of several gold answers the most probable one's; mean - none, mean - none's worst, mean - none's best: "
    "the method's mean over positions minus the plain model's mean, worst and best position, paired by question; "
    "spread: a question's highest minus its lowest over the orders of the same documents; KL, agree: "
    "KL(plain || method) of the token after the prompt in nats, and how often both find the same token the most "
    "probable."
)
BY_POSITION = ("accuracy_at_", "logprob_at_")  # columns of a CSV file
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


def ranked(result: Mapping[str, Any], measure: str | None = None) -> list[tuple[str, Mapping[str, Any]]]:
    """The methods of a result, the one with the best worst position first; by mean where there are no positions.

    Args:
        measure: what makes the order; None: accuracy, or, where that was not measured, the log-probability.
    """
    measure = measure or result["measures"][0]

    def rank(item: tuple[str, Mapping[str, Any]]) -> tuple[float, float, str]:
        figures = item[1] if measure == ACCURACY else item[1][measure] or {"mean": [None], "worst": None}
        mean = figures["mean"][0]
        worst = figures["worst"][0] if figures["worst"] else mean
        return -(worst if worst is not None else -math.inf), -(mean if mean is not None else -math.inf), item[0]

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


def logprob_headings(result: Mapping[str, Any]) -> list[str]:
    label, method = ranked(result, LOGPROB)[0]
    return list(_logprob_cells(result, label, method, True))


def logprob_lines(result: Mapping[str, Any]) -> list[list[str]]:
    """Cells for ``logprob_headings``, with intervals."""
    return [
        list(_logprob_cells(result, label, method, True).values())
        for label, method in ranked(result, LOGPROB)
        if method["logprob"]
    ]


def _logprob_cells(result: Mapping[str, Any], label: str, method: Mapping[str, Any], intervals: bool) -> dict[str, str]:
    figures = method["logprob"]
    cells = {"method": label}
    for name in ("worst", "mean", "gap"):
        cells[name] = with_interval(figures[name], intervals)
    minus = (figures["minus_plain"] or {}) if label != REFERENCE else {}
    cells[f"mean - {REFERENCE}"] = with_interval(minus.get("mean"), intervals, "+.2f")
    for name in ("worst", "best"):
        cells[f"mean - {REFERENCE}'s {name}"] = with_interval(minus.get(name), intervals, "+.2f")
    cells["spread"] = with_interval(figures["spread"], intervals)
    cells["KL"] = with_interval(figures["kl"], intervals)
    cells["agree"] = with_interval(figures["agreement"], intervals, ".0%")
    if kind := cost_kind(result):
        cells[COST_HEADINGS[kind]] = with_interval(cost_of(result, label), intervals, prefix="x")
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


def as_tables(result: Mapping[str, Any]) -> list[Table]:
    """For a terminal of 80 columns, one for each measure."""
    made = {ACCURACY: as_table, LOGPROB: as_logprob_table}
    return [made[measure](result) for measure in result["measures"]]


def as_logprob_table(result: Mapping[str, Any]) -> Table:
    """For a terminal of 80 columns: an interval for the difference to the plain model's mean only."""
    against = f"mean - {REFERENCE}"
    optional = [heading for heading in logprob_headings(result) if heading in COST_HEADINGS.values()]
    shown = ["KL", "agree", *optional]
    head = ["method", "worst", "mean", "gap", f"vs {REFERENCE}", f"{LEVEL}%", *shown]
    table = plain_table(f"{title(result)}: {LOGPROB_TITLE}", *head)
    for label, method in ranked(result, LOGPROB):
        if method["logprob"]:
            cells = _logprob_cells(result, label, method, False)
            _, low, high = (method["logprob"]["minus_plain"] or {}).get("mean") or (None, None, None)
            interval = NOTHING if low is None or label == REFERENCE else f"{low:+.2f} {high:+.2f}"
            row = (label, *(cells[name] for name in ("worst", "mean", "gap", against)), interval)
            table.add_row(*map(Text, (*row, *(cells[heading] for heading in shown))))
    return table


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
        notes = "".join(f"- {_in_markdown(note)}\n" for note in result["notes"])
        written = "\n".join(
            f"### {_in_markdown(name)}\n\n{_markdown_table(head, body)}\n" for name, head, body in grids(result)
        )
        parts.append(written + (f"\n{notes}" if notes else ""))
    return "\n".join(parts)


def grids(result: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, headings and lines of the table of each measure."""
    made = {
        ACCURACY: lambda: (title(result), headings(result), lines(result)),
        LOGPROB: lambda: (f"{title(result)}: {LOGPROB_TITLE}", logprob_headings(result), logprob_lines(result)),
    }
    return [made[measure]() for measure in result["measures"]]


def _markdown_table(head: list[str], body: list[list[str]]) -> str:
    rows = [head, ["---"] + ["---:"] * (len(head) - 1), *body]
    return "\n".join(f"| {' | '.join(_in_markdown(cell) for cell in row)} |" for row in rows)


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
    positions = sorted((name for name in names if name.startswith(BY_POSITION)), key=_position)
    written = io.StringIO()
    writer = csv.DictWriter(written, [name for name in names if name not in positions] + positions, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def _position(name: str) -> tuple[str, int]:
    measure, _, rest = name.partition("_at_")
    return measure, int(rest.partition("_")[0])


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
    row |= _logprob_columns(method["logprob"]) if method["logprob"] else {}
    for position, figure in method["accuracy_by_position"].items():
        row |= _columns(f"accuracy_at_{position}", figure)
    return row


def _logprob_columns(figures: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in ("mean", "worst", "best", "gap", "spread", "kl", "agreement"):
        row |= _columns(f"logprob_{name}" if name not in ("kl", "agreement") else name, figures[name])
    minus = figures["minus_plain"] or {}
    for name in ("mean", "worst", "best"):
        row |= _columns(f"logprob_mean_minus_{REFERENCE}_{name}", minus.get(name))
    for position, figure in figures["by_position"].items():
        row |= _columns(f"logprob_at_{position}", figure)
    return row


def _columns(name: str, figure: Iterable[float | None] | None) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), figure or (None, None, None), strict=True))
