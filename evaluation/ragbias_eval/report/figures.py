"""Draw the figures of reports in one style.

The style is readable in black and white and at 450 pixels, half of a README's width.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ragbias.display import printable
from ragbias.files import writing
from ragbias_eval import ACCURACY, REFERENCE
from ragbias_eval.report.tables import prefill_costs, rank_methods

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
MAX_OVERLAID = 3  # maximum number of curves with bands in one panel
POSITION = "position of the gold document (1 = first)"
LOGPROB = "log-probability (nats)"
RELATIVE_LOGPROB = "log-probability\n(nats, plain mean = 0)"
TITLES = {"worst": "at the worst position", "mean": "mean over positions"}

Point = Sequence[Any]  # estimate, low and high; each may be None
Style = dict[str, Any]  # colour, dashes, marker and filling of a method, as arguments of ``Axes.plot``
Curves = Mapping[str, Mapping[str, Point]]  # by method, then by position, counted from 0


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
    axis: Axes, xs: Sequence[float], points: Sequence[Point], style: Style, label: str | None, band: bool = True
) -> None:
    """Draw estimates with intervals, as a band or error bars."""
    known = [(x, *point) for x, point in zip(xs, points, strict=True) if point[0] is not None]
    xs_known, estimates, lows, highs = ([point[index] for point in known] for index in range(4))
    options = {**style, "markersize": 4.5, "linewidth": 1.6, "zorder": 3}
    options["label"] = label and escape_dollars(label)
    bounded = known and None not in (*lows, *highs)
    if bounded and not band:
        errors = abs(np.subtract([lows, highs], estimates))
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


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure to a file. Its suffix selects the format."""
    with writing(path):
        figure.savefig(path, dpi=130)


def curves_by_scale(result: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Point]]]:
    """Return curves by scale and method. The scale is accuracy, log-probability or relative log-probability."""
    curves: dict[str, dict[str, Mapping[str, Point]]] = {}
    for label, method in rank_methods(result):
        if ACCURACY in result["measures"]:
            curves.setdefault(ACCURACY, {})[label] = method["accuracy_by_position"]
        if figures := method["logprob"]:
            curves.setdefault(LOGPROB, {})[label] = figures["by_position"]
            if figures["minus_plain"]:
                curves.setdefault(RELATIVE_LOGPROB, {})[label] = figures["minus_plain"]["by_position"]
    return curves


def draw_curves(result: Mapping[str, Any], styles: Mapping[str, Style], measure: str) -> Figure:
    """Draw a measure, with intervals, by position of the gold document. If there are many methods, each has a panel.

    The plain model's mean is subtracted from log-probabilities if it is known.
    """
    curves = curves_by_scale(result)
    scale = ACCURACY if measure == ACCURACY else LOGPROB
    if scale == LOGPROB and curves[LOGPROB].keys() == curves.get(RELATIVE_LOGPROB, {}).keys():
        scale = RELATIVE_LOGPROB
    draw = draw_overlaid if len(curves[scale]) <= MAX_OVERLAID else draw_small_multiples
    return draw(curves[scale], styles, scale)


def draw_overlaid(curves: Curves, styles: Mapping[str, Style], scale: str = ACCURACY) -> Figure:
    """Draw all curves in one panel."""
    figure, (axis,) = make_canvas(height=2.8 + 0.1 * len(curves))
    _draw_panel(axis, curves, styles, {label: label for label in curves}, scale)
    return _add_labels(figure, POSITION, scale, columns=2)


def draw_small_multiples(curves: Curves, styles: Mapping[str, Style], scale: str = ACCURACY) -> Figure:
    """Draw a panel for each method. Each panel also has the plain model's curve."""
    plain = {label: points for label, points in curves.items() if label == REFERENCE}
    others = {label: points for label, points in curves.items() if label != REFERENCE}
    # panels are sorted by rank; each row has its own scale, so that one bad method does not flatten all curves
    figure, axes = make_canvas(len(others), height=1.9, sharey=True if scale == ACCURACY else "row")
    for axis, (label, points) in zip(axes, others.items(), strict=True):
        _draw_panel(axis, {**plain, label: points}, styles, {REFERENCE: "none (plain model)"}, scale)
        axis.set_title(panel_title(label), fontsize=9)
    return _add_labels(figure, POSITION, scale)


def _add_labels(figure: Figure, x: str, y: str, columns: int = 3) -> Figure:
    figure.supxlabel(x, fontsize=10)
    figure.supylabel(y, fontsize=10)
    draw_legend(figure, columns)
    return figure


def _draw_panel(axis: Axes, curves: Curves, styles: Mapping[str, Style], names: Mapping[str, str], scale: str) -> None:
    positions = sorted({int(position) + 1 for points in curves.values() for position in points})
    for label, points in curves.items():
        ordered = sorted((int(position) + 1, point) for position, point in points.items())
        xs, drawn = zip(*ordered, strict=True)
        draw_line(axis, xs, drawn, styles[label], names.get(label))
    if scale == ACCURACY:
        highest = max((point[2] or point[0] or 0 for points in curves.values() for point in points.values()), default=1)
        axis.set_ylim(0, max(axis.get_ylim()[1], min(1.03, 1.1 * highest)))
    if scale == RELATIVE_LOGPROB:
        axis.axhline(0, color=PALE, linewidth=0.8, zorder=1)
    if len(positions) <= 5:
        axis.set_xticks(positions)
    else:
        axis.locator_params(axis="x", nbins=5, integer=True)


def draw_accuracy_by_cost(result: Mapping[str, Any], styles: Mapping[str, Style]) -> Figure | None:
    """Draw worst and mean accuracy against prefill time. Return None if the time was not measured."""
    costs = prefill_costs(result)
    if not costs:
        return None
    methods = rank_methods(result)
    measures = [name for name in TITLES if all(method[name] and method[name][0] is not None for _, method in methods)]
    figure, axes = make_canvas(len(measures), columns=2, height=2.9 + 0.21 * -(-len(methods) // 2), sharey=True)
    for axis, measure in zip(axes, measures, strict=True):
        for label, method in methods:
            cost, *spread = costs[label]
            accuracy = float(method[measure][0])
            axis.plot(spread, [accuracy] * 2, color=PALE, linewidth=1, zorder=1)
            points = {**styles[label], "linestyle": "", "markeredgewidth": 1.5, "markersize": 7, "zorder": 3}
            axis.plot(cost, accuracy, label=escape_dollars(label), **points)
        xs = [cost for cost, *_ in costs.values()]
        if max(xs) > 4 * max(min(xs), 1e-9):
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_title(TITLES[measure], fontsize=10)
    return _add_labels(figure, "prefill time, in units of none", "accuracy", columns=2)
