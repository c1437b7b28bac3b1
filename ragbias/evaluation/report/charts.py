"""Pictures of position bias, drawn from the aggregates of a bench."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ragbias.evaluation.names import ACCURACY, REFERENCE
from ragbias.evaluation.report.figures import (
    INK,
    PALE,
    Point,
    Style,
    bars,
    canvas,
    legend,
    line,
    literal,
    panel_title,
    styles_of,
)
from ragbias.evaluation.report.tables import cost_kind, cost_of, ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OVERLAID = 3  # curves that one panel can hold
REFERENCE_LINES = {"closed_book": ("closed book", ":"), "oracle": ("gold document alone", "-.")}
POSITION = "position of the gold document (1 = first)"
COSTS = {"prefill_ratio": "prefill time, in units of none", "seconds_ratio": "time per answer, in units of none"}
TITLES = {"worst": "at the worst position", "mean": "mean over positions"}
SHADES = "cividis"  # lightness increases throughout

Curves = Mapping[str, Mapping[str, Point]]  # by method and position, counted from 0


LOGPROB = "log-probability (nats)"
RELATIVE_LOGPROB = "log-probability\n(nats, plain mean = 0)"


def u_curves(result: Mapping[str, Any], styles: Mapping[str, Style]) -> Figure:
    """Accuracy by the gold document's position with its intervals; with many methods a panel for each."""
    curves = {label: method["accuracy_by_position"] for label, method in ranked(result)}
    return _curves(curves, styles, result["reference_lines"], ACCURACY)


def logprob_curves(result: Mapping[str, Any], styles: Mapping[str, Style]) -> Figure:
    """The gold answer's log-probability as ``u_curves``, minus the plain model's mean over positions if that ran."""
    figures = {label: method["logprob"] for label, method in ranked(result) if method["logprob"]}
    if all(each["minus_plain"] for each in figures.values()):
        curves = {label: each["minus_plain"]["by_position"] for label, each in figures.items()}
        return _curves(curves, styles, {}, RELATIVE_LOGPROB)
    curves = {label: each["by_position"] for label, each in figures.items()}
    return _curves(curves, styles, result["logprob_reference_lines"], LOGPROB)


def _curves(curves: Curves, styles: Mapping[str, Style], lines: Mapping[str, Any], scale: str) -> Figure:
    if len(curves) <= OVERLAID:
        return overlaid({"": curves}, lines, styles, scale)
    return multiples(curves, styles, lines, scale)


def overlaid(
    curves_by_panel: Mapping[str, Curves],
    lines: Mapping[str, Any] | None = None,
    styles: Mapping[str, Style] | None = None,
    scale: str = ACCURACY,
) -> Figure:
    """All methods in one panel; one panel for each entry, titled by its key."""
    methods = max(map(len, curves_by_panel.values()))
    figure, axes = canvas(len(curves_by_panel), columns=2, height=2.8 + 0.1 * methods, sharey=True)
    for axis, (name, curves) in zip(axes, curves_by_panel.items(), strict=True):
        _panel(axis, curves, styles or styles_of(curves), {label: label for label in curves}, lines or {}, scale)
        axis.set_title(literal(name), fontsize=10)
    figure.supxlabel(POSITION, fontsize=10)
    figure.supylabel(scale, fontsize=10)
    legend(figure, columns=2)
    return figure


def multiples(curves: Curves, styles: Mapping[str, Style], lines: Mapping[str, Any], scale: str = ACCURACY) -> Figure:
    """A panel for each method but the plain model, whose curve is in all of them."""
    plain = {label: points for label, points in curves.items() if label == REFERENCE}
    others = {label: points for label, points in curves.items() if label != REFERENCE}
    figure, axes = canvas(len(others), height=1.9, sharey=True)
    for axis, (label, points) in zip(axes, others.items(), strict=True):
        _panel(axis, {**plain, label: points}, styles, {REFERENCE: "none (plain model)"}, lines, scale)
        axis.set_title(panel_title(label), fontsize=9)
    figure.supxlabel(POSITION, fontsize=10)
    figure.supylabel(scale, fontsize=10)
    legend(figure)
    return figure


def _panel(
    axis: Axes, curves: Curves, styles: Mapping[str, Style], names: Mapping[str, str], lines: Mapping[str, Any],
    scale: str,
) -> None:  # fmt: skip
    estimates = [{position: point[0] for position, point in points.items()} for points in curves.values()]
    for index, (label, points) in enumerate(curves.items()):
        known = sorted((int(position) + 1, point) for position, point in points.items())
        at, values = [position for position, _ in known], [point for _, point in known]
        line(axis, at, values, styles[label], names.get(label), wider=estimates[index + 1 :].count(estimates[index]))
    for name, figure in lines.items():
        if figure and figure[0] is not None:
            text, dashes = REFERENCE_LINES[name]
            axis.axhline(figure[0], color=INK, linestyle=dashes, linewidth=0.9, label=text, zorder=2)
    if scale == ACCURACY:
        highest = max((point[2] or point[0] or 0 for points in curves.values() for point in points.values()), default=1)
        axis.set_ylim(0, max(axis.get_ylim()[1], min(1.03, 1.1 * highest)))
    if scale == RELATIVE_LOGPROB:
        axis.axhline(0, color=PALE, linewidth=0.8, zorder=1)
    positions = sorted({int(position) + 1 for points in curves.values() for position in points})
    if len(positions) <= 5:
        axis.set_xticks(positions)
    else:
        axis.locator_params(axis="x", nbins=5, integer=True)


def accuracy_by_cost(result: Mapping[str, Any], styles: Mapping[str, Style]) -> Figure | None:
    """Worst and mean accuracy against cost, the methods on the Pareto front joined; None without any cost."""
    kind = cost_kind(result)
    if kind is None:
        return None
    methods = ranked(result)
    costs: dict[str, Point] = {label: cost_of(result, label) or [None] for label, _ in methods}
    measures = [name for name in TITLES if all(method[name] and method[name][0] is not None for _, method in methods)]
    figure, axes = canvas(len(measures), columns=2, height=2.9 + 0.21 * -(-len(methods) // 2), sharey=True)
    for axis, measure in zip(axes, measures, strict=True):
        points = {label: (float(costs[label][0] or 0), float(method[measure][0])) for label, method in methods}
        front = [points[label] for label in pareto(points)]
        axis.step(*zip(*front, strict=True), where="post", color=INK, linestyle="--", lw=1, label="Pareto front")
        for label, (cost, accuracy) in points.items():
            _, *spread = costs[label]
            if len(spread) == 2 and spread[0] is not None:
                axis.plot(spread, [accuracy] * 2, color=PALE, linewidth=1, zorder=1)
            style = styles[label]
            axis.plot(
                cost, accuracy, marker=style.marker, color=style.colour, markerfacecolor=style.filling,
                markeredgewidth=1.5, markersize=7, linestyle="", label=literal(label), zorder=3,
            )  # fmt: skip
        known = [cost for cost, _ in points.values()]
        if max(known) > 4 * max(min(known), 1e-9):
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_title(TITLES[measure], fontsize=10)
    figure.supxlabel(COSTS[kind], fontsize=10)
    figure.supylabel("accuracy", fontsize=10)
    legend(figure, columns=2)
    return figure


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The labels for which no other one costs no more and is at least as good, cheapest first; of equals the first."""
    front: list[str] = []
    for label, (_, accuracy) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if not front or accuracy > points[front[-1]][1]:
            front.append(label)
    return front


def flip_rates(result: Mapping[str, Any]) -> Figure | None:
    """Flip rates with intervals, beside the noise floor; None if no question ran in two orders."""
    methods = [(label, method) for label, method in ranked(result) if method["flip_rate"]]
    if not methods:
        return None
    methods.sort(key=lambda item: item[1]["flip_rate"][0])
    figure, (axis,) = canvas(height=0.5 + 0.42 * len(methods))
    bars(axis, [label for label, _ in methods], {"flips, 95% interval": [each["flip_rate"] for _, each in methods]})
    floors = [(row, each["noise_floor"][0]) for row, (_, each) in enumerate(methods) if each["noise_floor"]]
    if floors:
        rows, values = zip(*floors, strict=True)
        named = "noise floor: same order repeated"
        style: dict[str, Any] = {
            "color": INK,
            "markerfacecolor": "white",
            "markersize": 6,
            "clip_on": False,
            "zorder": 4,
        }
        axis.plot(values, rows, "D", label=named, **style)
    axis.set_xlabel("share of questions")
    legend(figure, columns=2)
    return figure


def depth_maps(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Accuracy by depth of the gold document and number of documents, a panel for each method.

    Args:
        results: of one model and task; None comes back unless two of them have several positions.
    """
    several = sorted(
        (each for each in results if ACCURACY in each["measures"] and len(each["positions"]) > 1),
        key=lambda each: int(each["documents"]),
    )
    if len(several) < 2:
        return None
    labels = list(dict.fromkeys(label for result in reversed(several) for label, _ in ranked(result)))
    methods = (method for result in several for method in result["methods"].values())
    known = [each[0] for method in methods for each in method["accuracy_by_position"].values() if each[0] is not None]
    shades = math.floor(10 * min(known)) / 10, max(math.ceil(10 * max(known)), math.floor(10 * min(known)) + 1) / 10
    figure, axes = canvas(len(labels), height=1.9, sharey=True)
    mesh: Any = None
    for axis, label in zip(axes, labels, strict=True):
        axis.grid(visible=False)
        for column, result in enumerate(several):
            if label in result["methods"]:
                points = result["methods"][label]["accuracy_by_position"]
                mesh = _depth_column(axis, column, int(result["documents"]), points, shades)
        axis.set(xlim=(0, len(several)), ylim=(100, 0), yticks=[0, 25, 50, 75, 100])
        axis.set_xticks([index + 0.5 for index in range(len(several))], [str(each["documents"]) for each in several])
        axis.set_title(panel_title(label), fontsize=9)
    figure.supxlabel("number of documents", fontsize=10)
    figure.supylabel("depth of the gold document in %", fontsize=10)
    figure.colorbar(mesh, ax=axes, label="accuracy", shrink=0.8, aspect=30)
    return figure


def _depth_column(
    axis: Axes, column: int, documents: int, points: Mapping[str, Point], shades: tuple[float, float]
) -> Any:
    """One column of cells, each as tall as the part of the depth that its position represents."""
    depths = sorted((100 * int(position) / (documents - 1), point[0]) for position, point in points.items())
    edges = [0.0, *((first + second) / 2 for (first, _), (second, _) in pairwise(depths)), 100.0]
    values = np.array([[np.nan if value is None else value] for _, value in depths])
    low, high = shades
    mesh = axis.pcolormesh([column, column + 1], edges, values, vmin=low, vmax=high, cmap=SHADES, edgecolors="white")
    for (top, bottom), value in zip(pairwise(edges), values[:, 0], strict=True):
        if bottom - top >= 9 and not np.isnan(value):
            shade, at = "white" if value < (low + high) / 2 else INK, (column + 0.5, (top + bottom) / 2)
            axis.text(*at, f"{value:.2f}", ha="center", va="center", fontsize=7, color=shade)
    return mesh
