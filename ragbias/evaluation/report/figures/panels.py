"""What the figures share: grids of small panels, their titles and legends, open frames."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ragbias.evaluation.report.looks import literal

COLUMNS = 4
TITLE_WIDTH = 28  # characters that fit over one panel


def panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A grid of small panels with one scale of y, those beyond ``count`` left out."""
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(2.35 * columns + 0.8, height * rows + 0.7), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def shared_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, each name once."""
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)


def panel_title(label: str) -> str:
    """A method's label on lines that fit over a small panel, its parameters on lines of their own."""
    if len(label) <= TITLE_WIDTH:
        return literal(label)
    name, bracket, parameters = label.partition("(")
    return literal("\n".join([name, *wrap(bracket + parameters, TITLE_WIDTH)]))


def open_frame(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
