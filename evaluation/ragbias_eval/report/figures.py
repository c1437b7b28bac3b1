"""Draw and save figures in one style, readable in black and white and at 450 pixels, half of a README's width."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any
from urllib.parse import quote

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ragbias.display import printable
from ragbias.files import writing
from ragbias_eval import REFERENCE

WIDTH = 6.4  # of a figure, in inches
INK, PALE = "#000000", "#8c8c8c"
DASHES: tuple[tuple[str, Any], ...] = (  # colours mostly from the colour-blind safe palette of Okabe and Ito
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
MAX_TITLE_LENGTH = 30  # maximum number of letters above a panel of a third of the width

Point = Sequence[Any]  # estimate, low and high; each may be None
Style = dict[str, Any]  # colour, dashes, marker and filling of a method, as arguments of ``Axes.plot``


def make_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Assign a style to each label. The plain model is black. The first 17 styles differ even without colour."""
    plain_first = sorted(dict.fromkeys(labels), key=lambda label: label != REFERENCE)
    styles: dict[str, Style] = {label: {"color": INK, "linestyle": "-", "marker": "o"} for label in plain_first[:1]}
    for index, label in enumerate(plain_first[1:]):
        colour, dashes = DASHES[index % len(DASHES)]
        styles[label] = {"color": colour, "linestyle": dashes, "marker": MARKERS[index % len(MARKERS)]}
        if index // len(MARKERS) % 2:
            styles[label]["markerfacecolor"] = "white"
    return styles


def make_canvas(
    count: int = 1, columns: int = 3, height: float = 3.0, title: str = "", **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Create a figure of ``count`` panels. Rows have at most ``columns`` panels and are ``height`` inches high."""
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
        figure.suptitle(escape_dollars("\n".join(wrap(title, 72))), fontsize=10)
    return figure, axes[:count]


def draw_legend(figure: Figure, columns: int = 3) -> None:
    """Draw one legend for all panels at the top of the figure."""
    entries = (zip(*axis.get_legend_handles_labels(), strict=True) for axis in figure.axes)
    handles: dict[str, Any] = {label: handle for axis_entries in entries for handle, label in axis_entries}
    if handles:
        layout: dict[str, Any] = {"loc": "outside upper center", "ncols": 1 if max(map(len, handles)) > 45 else columns}
        figure.legend(handles.values(), handles.keys(), **layout, frameon=False, handlelength=3, fontsize=9)


def draw_line(
    axis: Axes, xs: Sequence[float], points: Sequence[Point], style: Style, label: str | None, band: bool = True,
    wider: int = 0,
) -> None:  # fmt: skip
    """Draw estimates with intervals, as a band or error bars. ``wider`` thickens a curve that others would hide."""
    known = [(x, *point) for x, point in zip(xs, points, strict=True) if point[0] is not None]
    xs_known, estimates = [x for x, *_ in known], [estimate for _, estimate, *_ in known]
    options = {**style, "markersize": 4.5 + 4 * wider, "linewidth": 1.6 + 2.5 * wider, "zorder": 3}
    options["label"] = label and escape_dollars(label)
    lows, highs = ([point[index] for point in known] for index in (2, 3))
    bounded = known and None not in (*lows, *highs)
    if bounded and not band:
        errors = [
            [estimate - low for _, estimate, low, _ in known],
            [high - estimate for _, estimate, _, high in known],
        ]
        axis.errorbar(xs_known, estimates, yerr=errors, capsize=2, elinewidth=0.8, **options)
        return
    axis.plot(xs_known, estimates, **options)
    if bounded:
        axis.fill_between(xs_known, lows, highs, color=style["color"], alpha=0.15, linewidth=0)


def escape_dollars(text: str) -> str:
    """Escape dollar signs, because matplotlib parses text between them as mathematics."""
    return printable(text).replace("$", r"\$")


def panel_title(label: str) -> str:
    """Wrap a method's label to fit above a small panel. Its parameters begin on a new line."""
    if len(label) <= MAX_TITLE_LENGTH:
        return escape_dollars(label)
    name, bracket, parameters = label.partition("(")
    return escape_dollars("\n".join([name, *wrap(bracket + parameters, MAX_TITLE_LENGTH)]))


def render_svg(figure: Figure, name: str, fonttype: str = "none") -> str:
    """Render the figure as reproducible SVG. ``fonttype="path"`` draws letters as paths, which need no font."""
    text = io.StringIO()
    settings: Any = {"svg.hashsalt": name, "svg.fonttype": fonttype, "font.sans-serif": FONTS}
    with matplotlib.rc_context(settings):
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    return " ".join(row.strip() for row in text.getvalue().splitlines())


def data_url(figure: Figure, name: str) -> str:
    """Render the figure as a ``data:`` URL for an HTML page."""
    return "data:image/svg+xml," + quote(render_svg(figure, name), safe=" /:;,=")


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure to a file. Its suffix selects the format."""
    with writing(path):
        figure.savefig(path, dpi=130)
