"""Build tables of results. Methods are sorted by the score at their worst position."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ragbias.data.intervals import format_figure
from ragbias_eval import ACCURACY, LOGPROB, REFERENCE
from ragbias_eval.measures.aggregates import figures_of

LOGPROB_TITLE = "log-probability of the gold answer, in nats"
AGAINST_PLAIN = f"mean - {REFERENCE}: the method's mean over positions minus the plain model's mean, paired by question"
LEGENDS = {
    ACCURACY: "worst, mean, gap: accuracy over the positions of the gold document; "
    f"{AGAINST_PLAIN}; flips: questions whose answer depends on the order of the documents; noise: "
    "questions whose answer changes if the same order is repeated.",
    LOGPROB: "log-probability: natural logarithm of the probability of the most probable gold answer after the "
    f"prompt, summed over tokens; {AGAINST_PLAIN}; spread: a question's highest minus its lowest value over the orders "
    "of the same documents; KL: KL(plain || method) of the token after the prompt, in nats; agree: share of prompts "
    "after which the same token is most probable with and without the method.",
}
OTHER_FIGURES = {  # heading and format by measure and name
    ACCURACY: {"flip_rate": ("flips", ".0%"), "noise_floor": ("noise", ".0%")},
    LOGPROB: {"spread": ("spread", ".2f"), "kl": ("KL", ".2f"), "agreement": ("agree", ".0%")},
}
# columns of the tables in a terminal; those that only the HTML page shows follow from them
INTERVAL_COLUMNS = ("worst", f"mean - {REFERENCE}")
ESTIMATE_COLUMNS = ("mean", "gap", "flips", "noise", "spread", "KL", "agree", "order", "prefill")
ORDER_LEGEND = (
    "agreement (Kendall's tau) between the orders in which a method presents the same documents for different input "
    "orders: 1 always the same, 0 unrelated, -1 reversed. For the plain model (none), these are the input orders."
)
JUDGE_FIGURES = {"swap_consistency": "swap-consistent", "prefers_first": "prefers first"}
JUDGE_COLUMNS = ("no verdict", *JUDGE_FIGURES.values())
MAX_COLUMNS = 6  # maximum number of columns with figures that fit an HTML page


@dataclass(frozen=True)
class Grid:
    """A table of numbers such as ``0.71 (0.62 to 0.79)``. The first column identifies a row."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    columns: int = MAX_COLUMNS  # maximum number of columns after the first

    def split(self) -> Iterator[Grid]:
        """Split the table into parts of at most ``columns`` columns. Each part repeats the first column."""
        for begin in range(1, len(self.head), self.columns):
            part = slice(begin, begin + self.columns)
            rows = [[row[0], *row[part]] for row in self.rows]
            yield Grid("" if begin > 1 else self.title, [self.head[0], *self.head[part]], rows)


def make_table(title: str, first: str, *others: str, wrap: bool = False) -> Table:
    """Build an empty table. Long text in the first column wraps. Other columns wrap only if ``wrap`` is set."""
    table = Table(title=Text(title), box=None, padding=(0, 1, 0, 0), header_style="bold underline")
    table.add_column(Text(first), overflow="fold")
    for heading in others:
        table.add_column(Text(heading), justify="right", no_wrap=not wrap)
    return table


def as_terminal_tables(grid: Grid) -> Group:
    """Convert the parts of a grid to tables for a terminal."""
    made = []
    for part in grid.split():
        made.append(make_table(part.title, *part.head))
        for row in part.rows:
            made[-1].add_row(*map(Text, row))
    return Group(*made)


def rank_methods(result: Mapping[str, Any], measure: str | None = None) -> list[tuple[str, Mapping[str, Any]]]:
    """Sort methods by the score at their worst position, or by the mean score if there are no positions.

    ``measure=None`` selects accuracy, or the log-probability if accuracy was not measured.
    """
    measure = measure or result["measures"][0]

    def rank(item: tuple[str, Mapping[str, Any]]) -> tuple[float, float, str]:
        figures = figures_of(item[1], measure)
        mean, worst = ((figures.get(name) or [None])[0] for name in ("mean", "worst"))
        if mean is None:
            mean = -math.inf
        if worst is None:
            worst = mean
        return -worst, -mean, item[0]

    return sorted(result["methods"].items(), key=rank)


def format_title(result: Mapping[str, Any], measure: str = ACCURACY) -> str:
    documents = f"{result['documents']} documents" if result["documents"] else "no documents"
    what = "" if measure == ACCURACY else f": {LOGPROB_TITLE}"
    return f"{result['task']}, {documents}, model {result['model']}{what}"


def prefill_costs(result: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return each method's prefill time relative to ``none``, as ``[median, low, high]``.

    Return {} if any method was not timed.
    """
    costs = {label: method.get("cost", {}).get("prefill_ratio") for label, method in result["methods"].items()}
    return costs if all(costs.values()) else {}


def shows_order(result: Mapping[str, Any]) -> bool:
    """Whether any method reorders documents. The table of accuracies then has the column ``order``."""
    return ACCURACY in result["measures"] and any(
        method["kendall_tau"] for label, method in result["methods"].items() if label != REFERENCE
    )


def build_grids(result: Mapping[str, Any]) -> list[Grid]:
    """Build a table for each measure, with a row per method."""
    made = []
    for measure in result["measures"]:
        labels = [label for label, method in rank_methods(result, measure) if figures_of(method, measure)]
        rows = [_format_cells(result, label, measure) for label in labels]
        made.append(Grid(format_title(result, measure), list(rows[0]), [list(cells.values()) for cells in rows]))
    return made


def _format_cells(result: Mapping[str, Any], label: str, measure: str) -> dict[str, str]:
    method = result["methods"][label]
    figures = figures_of(method, measure)
    cells = {"method": label}
    for name in ("worst", "mean", "gap"):
        cells[name] = format_figure(figures[name])
    minus = (figures["minus_plain"] or {}) if label != REFERENCE else {}
    if measure == ACCURACY:
        cells[f"worst - {REFERENCE}"] = format_figure(minus.get("worst_to_worst"), "+.2f")
    cells[f"mean - {REFERENCE}"] = format_figure(minus.get("mean"), "+.2f")
    for name in ("worst", "best"):
        cells[f"mean - {REFERENCE}'s {name}"] = format_figure(minus.get(name), "+.2f")
    for name, (heading, form) in OTHER_FIGURES[measure].items():
        cells[heading] = format_figure(figures[name], form)
    if measure == ACCURACY and shows_order(result):
        cells["order"] = format_figure(method["kendall_tau"])
    if costs := prefill_costs(result):
        cells["prefill"] = format_figure(costs[label], prefix="x")
    if measure == ACCURACY and "judge" in method:
        cells["no verdict"] = format_figure([method["judge"]["undecided"], None, None], ".0%")
        for name, heading in JUDGE_FIGURES.items():
            cells[heading] = format_figure(method["judge"][name])
    return cells


def as_tables(result: Mapping[str, Any]) -> Iterator[Group]:
    """Yield up to three narrow tables for each measure: figures with intervals, figures without, a judge's figures."""
    for grid in build_grids(result):
        tables = []
        for names in (INTERVAL_COLUMNS, ESTIMATE_COLUMNS, JUDGE_COLUMNS):
            columns = [index for index, name in enumerate(grid.head) if name in names]
            if not columns:
                continue
            table = make_table("", "method", *(grid.head[index] for index in columns))
            for row in grid.rows:
                cells = [row[index] for index in columns]
                if names is not INTERVAL_COLUMNS:
                    cells = [cell.split(" (")[0] for cell in cells]
                table.add_row(Text(row[0]), *cells)
            tables.append(table)
        yield Group(Text(grid.title, style="italic"), *tables)


def as_tables_against(result: Mapping[str, Any], minus: Mapping[str, Any], label: str) -> Iterator[Group]:
    """Yield a table of differences from ``label`` for each measure. ``minus`` comes from ``differences_from``."""
    ends = ("mean", "worst")
    for measure, methods in minus.items():
        rows = [[name, *(format_figure(each[end], "+.2f") for end in ends)] for name, each in methods.items()]
        yield as_terminal_tables(Grid(f"{format_title(result, measure)}, minus {label}", ("method", *ends), rows))
