"""The style of all pictures, and functions that draw and save them.

Methods differ by colour (mostly the colour-blind safe palette of Okabe and Ito), dashes, marker and filling, so that
pictures are readable in black and white. They are legible at a width of 450 pixels, which is half of a README's.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any
from urllib.parse import quote

from ragbias.display import printable
from ragbias.evaluation import REFERENCE
from ragbias.extras import require
from ragbias.files import writing

require("matplotlib", "bench")

import matplotlib  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

WIDTH = 6.4  # width of a picture in inches
INK, PALE = "#000000", "#8c8c8c"
DASHES: tuple[tuple[str, Any], ...] = (
    ("#d55e00", "--"),
    ("#0072b2", "-."),
    ("#009e73", ":"),
    ("#cc79a7", (0, (5, 1, 1, 1, 1, 1))),
    ("#56b4e9", (0, (1, 1))),
    ("#882255", (0, (3, 1, 1, 1))),
    ("#e69f00", (0, (6, 2))),
)
MARKERS = "s^DvP<>p"
FONTS = ["DejaVu Sans", "Verdana"]  # Verdana is a common fallback of similar width
TITLE_LETTERS = 30  # maximum title length of a panel with a third of the width

Point = Sequence[Any]  # estimate, low, high; each may be None


@dataclass(frozen=True)
class Style:
    """Colour, dashes, marker and filling of one method."""

    colour: str
    dashes: Any
    marker: str
    filling: str


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """Assign a style to each label. The plain model is black. The first 17 styles differ even without colour."""
    plain_first = sorted(dict.fromkeys(labels), key=lambda label: label != REFERENCE)
    styles = dict.fromkeys(plain_first[:1], Style(INK, "-", "o", INK))
    for index, label in enumerate(plain_first[1:]):
        colour, dashes = DASHES[index % len(DASHES)]
        filling = "white" if index // len(MARKERS) % 2 else colour
        styles[label] = Style(colour, dashes, MARKERS[index % len(MARKERS)], filling)
    return styles


def canvas(
    count: int = 1, columns: int = 3, height: float = 3.0, title: str = "", **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Create a picture of ``count`` panels in rows of at most ``columns``, each row ``height`` inches high."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axis in axes[count:]:
        axis.remove()
    for axis in axes[:count]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=9)
    if title:
        figure.suptitle(literal("\n".join(wrap(title, 72))), fontsize=10)
    return figure, axes[:count]


def legend(figure: Figure, columns: int = 3) -> None:
    """Draw one legend for all panels at the top of the picture."""
    named: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if named:
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": 1 if max(map(len, named)) > 45 else columns}
        figure.legend(named.values(), named.keys(), **place, frameon=False, handlelength=3, fontsize=9)


def line(
    axis: Axes, xs: Sequence[float], points: Sequence[Point], style: Style, label: str | None, band: bool = True,
    wider: int = 0,
) -> None:  # fmt: skip
    """Draw estimates with intervals, shaded or as error bars. ``wider`` widens a curve that equal curves will cover."""
    known = [(x, *point) for x, point in zip(xs, points, strict=True) if point[0] is not None]
    at, estimates = [x for x, *_ in known], [estimate for _, estimate, *_ in known]
    drawn: dict[str, Any] = dict(
        color=style.colour, linestyle=style.dashes, marker=style.marker, markerfacecolor=style.filling,
        markersize=4.5 + 4 * wider, linewidth=1.6 + 2.5 * wider, zorder=3, label=label and literal(label),
    )  # fmt: skip
    lows, highs = ([point[index] for point in known] for index in (2, 3))
    if not known or None in lows or None in highs:
        axis.plot(at, estimates, **drawn)
    elif band:
        axis.plot(at, estimates, **drawn)
        axis.fill_between(at, lows, highs, color=style.colour, alpha=0.15, linewidth=0)
    else:
        axis.errorbar(at, estimates, yerr=_reach(known), capsize=2, elinewidth=0.8, **drawn)


def bars(axis: Axes, labels: Sequence[str], series: Mapping[str, Sequence[Point | None]]) -> None:
    """Draw shares from 0 to 1 as horizontal bars with intervals and percentages, one per label and series."""
    fills: list[dict[str, Any]] = [{"color": "#9ecae1"}, {"color": "white", "hatch": "////"}]
    step = 0.8 / len(series)
    for index, (name, points) in enumerate(series.items()):
        for row, point in enumerate(points):
            if point is None or point[0] is None:
                continue
            estimate, low, high = point
            at = row + step * (index - (len(series) - 1) / 2)
            named = name if name not in axis.get_legend_handles_labels()[1] else None
            axis.barh(at, estimate, 0.9 * step, linewidth=0.8, edgecolor=INK, label=named, **fills[index])
            if low is not None and high is not None:
                axis.errorbar(estimate, at, xerr=_reach([(at, estimate, low, high)]), color=PALE, capsize=3)
            end, percentage = (max(estimate, high or 0), at), f"{estimate:.0%}"
            axis.annotate(percentage, end, xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5)
    axis.set_yticks(range(len(labels)), [panel_title(label) for label in labels])
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    highest = max((point[2] or point[0] or 0 for points in series.values() for point in points if point), default=1)
    axis.set_xlim(0, min(1.12, max(0.1, 1.25 * highest)))
    axis.grid(visible=False, axis="y")


def _reach(known: Sequence[Sequence[Any]]) -> list[list[float]]:
    """Compute the distances from the estimates to the ends of their intervals."""
    return [[estimate - low for _, estimate, low, _ in known], [high - estimate for _, estimate, _, high in known]]


def literal(text: str) -> str:
    """Escape a name for matplotlib, which parses text between dollar signs as mathematics."""
    return printable(text).replace("$", r"\$")


def panel_title(label: str) -> str:
    """Wrap a method's label to fit above a small panel. Parameters begin on a new line."""
    if len(label) <= TITLE_LETTERS:
        return literal(label)
    name, bracket, parameters = label.partition("(")
    return literal("\n".join([name, *wrap(bracket + parameters, TITLE_LETTERS)]))


def svg(figure: Figure, name: str, fonttype: str = "none") -> str:
    """Render the figure as reproducible SVG. ``fonttype="path"`` draws letters as paths, without a font."""
    written = io.StringIO()
    settings: Any = {"svg.hashsalt": name, "svg.fonttype": fonttype, "font.sans-serif": FONTS}
    with matplotlib.rc_context(settings):
        figure.savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    return " ".join(row.strip() for row in written.getvalue().splitlines())


def address(figure: Figure, name: str) -> str:
    """Render the figure as a ``data:`` URL for an HTML page."""
    return "data:image/svg+xml," + quote(svg(figure, name), safe=" /:;,=")


def save(figure: Figure, path: Path) -> None:
    """Write a picture in the format that its suffix names."""
    with writing(path):
        figure.savefig(path, dpi=130)
