"""What the figures of experiments share: heat maps by layer, and curves that are told apart in black and white."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ragbias.evaluation.report.figures.panels import open_frame
from ragbias.evaluation.report.looks import literal, looks_of

MOST_TICKS = 16


def page(title: str, widths: Sequence[float], height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """A row of panels, each laid out for itself; widths and height in inches."""
    figure = Figure(figsize=(sum(widths), height), layout="constrained")
    figure.suptitle(literal(title), fontsize=10)
    parts = figure.subfigures(1, len(widths), squeeze=False, width_ratios=widths, wspace=0.03)[0]
    return figure, [part.subplots() for part in parts]


def heat_map(
    axis: Axes,
    values: Tensor,
    columns: Sequence[object],
    title: str,
    x: str,
    label: str,
    y: str = "layer",
    white: float | None = 0,
) -> None:
    """``[rows, columns]`` in greys, the darkest the greatest, with a bar.

    Args:
        columns: their names.
        label: what the shades say.
        white: the value that is white; None: the least.
    """
    rows = len(values)
    image = axis.imshow(values.numpy(), cmap="Greys", vmin=white, aspect="auto", interpolation="nearest")
    shown = range(0, len(columns), -(-len(columns) // MOST_TICKS))
    axis.set_xticks(shown, [str(columns[column]) for column in shown])
    axis.set_yticks(range(0, rows, -(-rows // MOST_TICKS)))
    axis.tick_params(labelsize=8)
    axis.set_title(literal(title), fontsize=9.5)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    assert axis.figure is not None
    bar = axis.figure.colorbar(image, ax=axis, pad=0.03, aspect=30, label=label)
    bar.ax.tick_params(labelsize=8)
    bar.locator = MaxNLocator(5)
    bar.update_ticks()


def curves(
    axis: Axes,
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    title: str,
    x_label: str,
    y_label: str,
    level: tuple[str, float] | None = None,
    markers: bool = True,
    from_zero: bool = True,
) -> None:
    """A line for each label, and a level one that is named, with a legend below the panel.

    Args:
        markers: whether the points are marked.
        from_zero: whether the panel reaches down to 0.
    """
    looks = looks_of(lines)
    for label, values in lines.items():
        look = looks[label]
        axis.plot(
            x, values, color=look.colour, linestyle=look.dashes, marker=look.marker if markers else "",
            markerfacecolor=look.filling, markersize=4.5, linewidth=1.3, label=literal(label),
        )  # fmt: skip
    if level is not None:
        axis.axhline(level[1], color="#777777", linewidth=1, label=literal(level[0]))
    axis.set_title(literal(title), fontsize=9.5)
    axis.set_xlabel(x_label, fontsize=9)
    axis.set_ylabel(y_label, fontsize=9)
    axis.xaxis.set_major_locator(MaxNLocator(MOST_TICKS, integer=True))
    axis.tick_params(labelsize=8)
    if from_zero:
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
    open_frame(axis)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False, handlelength=4, fontsize=8.5)
