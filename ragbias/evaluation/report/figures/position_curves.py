"""Pictures of position bias, from the aggregates of a bench; readable without colour.

Methods are told apart by line style, marker and filling, and are named beside what belongs to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from ragbias.evaluation.measures.aggregates import REFERENCE
from ragbias.evaluation.report.looks import literal
from ragbias.evaluation.report.tables import cost_kind, cost_of, ranked

OVERLAID = 3  # bands that one panel can hold
COLUMNS = 4  # of small multiples
TITLE = 28  # characters that fit over one
# the colours that Okabe and Ito found safe for the colour-blind; lines differ in dashes and markers as well
LINES: tuple[tuple[str, Any], ...] = (
    ("#000000", "-"),
    ("#d55e00", "--"),
    ("#0072b2", "-."),
    ("#009e73", ":"),
    ("#cc79a7", (0, (5, 1, 1, 1, 1, 1))),
    ("#56b4e9", (0, (1, 1))),
)
SHADES = "cividis"  # grows lighter throughout
MARKERS = "os^DvP<>"
LINE_NAMES = {"closed_book": ("closed book", ":"), "oracle": ("gold document alone", "-.")}
COST_LABELS = {
    "prefill_ratio": "prefill time, in units of none",
    "seconds_ratio": "time per answer, in units of none",
}

# by method and position (counted from 0): estimate, low, high; any of them may be None
Curves = Mapping[str, Mapping[str, Sequence[Any]]]


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    colour: str
    dashes: Any
    marker: str
    filling: str


def looks_of(labels: Iterable[str]) -> dict[str, Look]:
    """One look for each label, the first 16 told apart by marker and filling alone.

    Figures that are read beside each other take one assignment, made of the labels of all of them.
    """
    looks = {}
    for index, label in enumerate(dict.fromkeys(labels)):
        colour, dashes = LINES[index % len(LINES)]
        filling = "white" if index // len(MARKERS) % 2 else colour
        looks[label] = Look(colour, dashes, MARKERS[index % len(MARKERS)], filling)
    return looks


def u_curves(result: Mapping[str, Any], looks: Mapping[str, Look]) -> Figure:
    """Accuracy by the gold document's position, with bootstrap bands; a panel for each method where there are many."""
    curves = {label: method["accuracy_by_position"] for label, method in ranked(result)}
    lines = result["reference_lines"]
    if len(curves) <= OVERLAID:
        return overlaid({"": curves}, lines, looks)
    return multiples(curves, looks, lines)


def overlaid(
    panels: Mapping[str, Curves], lines: Mapping[str, Any] | None = None, looks: Mapping[str, Look] | None = None
) -> Figure:
    """All methods, six at most, in one panel; one panel for each entry, named by its key.

    Args:
        looks: by label; None: each panel's methods in their order, for labels that differ between the panels.
    """
    figure = Figure(figsize=(5.6 * len(panels) + 1.4, 4.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (name, curves) in zip(axes, panels.items(), strict=True):
        _curves(axis, curves, looks or looks_of(curves), {label: label for label in curves}, 0.12)
        _reference_lines(axis, lines or {})
        _position_axis(axis, curves)
        axis.set(title=literal(name), xlabel="position of the gold document (1 = first)")
        below = dict(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
        axis.legend(**below, frameon=False, handlelength=4, fontsize=9)
    axes[0].set_ylabel("accuracy")
    return figure


def multiples(curves: Curves, looks: Mapping[str, Look], lines: Mapping[str, Any] | None = None) -> Figure:
    """A panel for each method, the plain model's curve in each."""
    figure, axes = _panels(len(curves), 2.0, sharey=True)
    for axis, (label, points) in zip(axes, curves.items(), strict=False):
        shown = {REFERENCE: curves[REFERENCE]} if REFERENCE in curves else {}
        names = {REFERENCE: "none (plain model)"}  # the others are named above their panels
        _curves(axis, {**shown, label: points}, looks, names, 0.2)
        _reference_lines(axis, lines or {})
        _position_axis(axis, curves)
        axis.set_title(_wrapped(label), fontsize=9)
    _one_legend(figure, axes)
    figure.supxlabel("position of the gold document (1 = first)", fontsize=10)
    figure.supylabel("accuracy", fontsize=10)
    return figure


def cost_accuracy(result: Mapping[str, Any], looks: Mapping[str, Look]) -> Figure | None:
    """Mean and worst accuracy against cost, the methods on the Pareto front joined; ``None`` without any cost."""
    kind = cost_kind(result)
    if kind is None:
        return None
    costs = {label: cost_of(result, label) or [None] for label in result["methods"]}
    measures = [
        name
        for name in ("worst", "mean")
        if all(method[name] and method[name][0] is not None for method in result["methods"].values())
    ]
    height = max(4.0, 0.235 * len(costs) + 1.2)
    figure = Figure(figsize=(4.3 * len(measures) + 2.6, height), layout="constrained")
    axes = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axis, measure in zip(axes, measures, strict=True):
        points = {label: (float(costs[label][0] or 0), float(method[measure][0])) for label, method in ranked(result)}
        _front(axis, points)
        for label, (cost, accuracy) in points.items():
            look = looks[label]
            _, *spread = costs[label]
            if len(spread) == 2 and spread[0] is not None:
                axis.plot(spread, [accuracy] * 2, color="#999999", linewidth=1, zorder=1)
            axis.plot(
                cost,
                accuracy,
                marker=look.marker,
                color=look.colour,
                markerfacecolor=look.filling,
                markeredgewidth=1.5,
                markersize=8,
                linestyle="",
                label=None if label is None else literal(label),
                zorder=3,
            )
        _cost_axis(axis, [cost for cost, _ in points.values()], COST_LABELS[kind])
        axis.set_title({"worst": "at the worst position", "mean": "mean over positions"}[measure], fontsize=10)
    axes[0].set_ylabel("accuracy")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8.5)
    return figure


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The labels for which no other one costs no more and is at least as good, cheapest first; of equals the first."""
    front: list[str] = []
    for label, (_, accuracy) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if not front or accuracy > points[front[-1]][1]:
            front.append(label)
    return front


def flip_rates(result: Mapping[str, Any]) -> Figure | None:
    """Flip rates with intervals, beside the noise floor; ``None`` where no question was asked in two orders."""
    methods = [(label, method) for label, method in ranked(result) if method["flip_rate"]]
    if not methods:
        return None
    methods.sort(key=lambda item: item[1]["flip_rate"][0])
    figure = Figure(figsize=(7.2, 0.34 * len(methods) + 1.5), layout="constrained")
    axis = figure.subplots()
    for row, (_, method) in enumerate(methods):
        rate, low, high = method["flip_rate"]
        named = "flips over the orders, 95% interval" if row == 0 else None
        axis.barh(row, rate, height=0.62, color="#9ecae1", edgecolor="black", linewidth=0.8, label=named)
        if low is not None:
            axis.errorbar(rate, row, xerr=[[rate - low], [high - rate]], color="black", capsize=3, linewidth=1)
        end = max(rate, high or 0, (method["noise_floor"] or [0])[0])
        axis.annotate(f"{rate:.0%}", (end, row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8.5)
    floors = [(row, method["noise_floor"][0]) for row, (_, method) in enumerate(methods) if method["noise_floor"]]
    if floors:
        rows, values = zip(*floors, strict=True)
        axis.plot(
            values, rows, "D", color="black", markerfacecolor="white", markersize=6, clip_on=False, zorder=4,
            label="noise floor: same order, asked twice",
        )  # fmt: skip
    axis.set_yticks(range(len(methods)), [literal(label) for label, _ in methods])
    axis.set_xlabel("share of questions")
    axis.set_xlim(0, min(1.12, max(0.1, 1.25 * max((m["flip_rate"][2] or m["flip_rate"][0]) for _, m in methods))))
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_ylim(len(methods) - 0.4, -0.6)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    _open_frame(axis)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def heat_maps(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Accuracy by depth of the gold document and number of documents, a panel for each method.

    Args:
        results: of one model and task. ``None`` comes back unless two of them have several positions.
    """
    several = sorted((r for r in results if len(r["positions"]) > 1), key=lambda result: int(result["documents"]))
    if len(several) < 2:
        return None
    labels = list(dict.fromkeys(label for result in reversed(several) for label, _ in ranked(result)))
    figure, axes = _panels(len(labels), 2.1, sharey=True)
    shades = _shades(several)
    for axis, label in zip(axes, labels, strict=False):
        axis.set_facecolor("white")
        for column, result in enumerate(several):
            method = result["methods"].get(label)
            if method is not None:
                _depths(axis, column, int(result["documents"]), method["accuracy_by_position"], shades)
        axis.set(xlim=(0, len(several)), ylim=(100, 0), yticks=[0, 25, 50, 75, 100])
        axis.set_xticks([index + 0.5 for index in range(len(several))], [str(r["documents"]) for r in several])
        axis.set_title(_wrapped(label), fontsize=9)
        axis.tick_params(labelsize=8)
    figure.supxlabel("number of documents", fontsize=10)
    figure.supylabel("depth of the gold document in %", fontsize=10)
    figure.colorbar(ScalarMappable(Normalize(*shades), SHADES), ax=axes, label="accuracy", shrink=0.8, aspect=30)
    return figure


def _shades(results: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The range of all accuracies, out to whole tenths."""
    methods = (method for result in results for method in result["methods"].values())
    values = [each[0] for method in methods for each in method["accuracy_by_position"].values() if each[0] is not None]
    low, high = math.floor(10 * min(values)) / 10, math.ceil(10 * max(values)) / 10
    return (low, high) if high > low else (max(0, low - 0.1), low + 0.1)


def _depths(
    axis: Axes,
    column: int,
    documents: int,
    points: Mapping[str, Sequence[Any]],
    shades: tuple[float, float],
) -> None:
    """One column of cells, each as tall as the part of the depth that its position stands for."""
    asked = sorted((100 * int(position) / (documents - 1), point[0]) for position, point in points.items())
    depths = [depth for depth, _ in asked]
    edges = [0.0, *((first + second) / 2 for first, second in pairwise(depths)), 100.0]
    values = np.array([[np.nan if value is None else value] for _, value in asked])
    low, high = shades
    axis.pcolormesh([column, column + 1], edges, values, vmin=low, vmax=high, cmap=SHADES, edgecolors="white")
    for (top, bottom), value in zip(pairwise(edges), values[:, 0], strict=True):
        if bottom - top >= 9 and not np.isnan(value):
            shade = "white" if value < (low + high) / 2 else "black"
            text = f"{value:.2f}"
            axis.text(column + 0.5, (top + bottom) / 2, text, ha="center", va="center", fontsize=6.5, color=shade)


def _curves(axis: Axes, curves: Curves, looks: Mapping[str, Look], names: Mapping[str, str], band: float) -> None:
    """Lines with markers over their intervals; one that equals lines drawn over it is as much wider as to be seen."""
    estimates = [{position: point[0] for position, point in points.items()} for points in curves.values()]
    for index, (label, points) in enumerate(curves.items()):
        over = estimates[index + 1 :].count(estimates[index])
        _curve(axis, points, looks[label], names.get(label), over, band)


def _curve(
    axis: Axes, points: Mapping[str, Sequence[Any]], look: Look, label: str | None, over: int, band: float
) -> None:
    """A line under ``over`` equal ones, and its intervals with opacity ``band``."""
    known = sorted((int(position) + 1, *point) for position, point in points.items() if point[0] is not None)
    places = [place for place, *_ in known]
    axis.plot(
        places, [estimate for _, estimate, _, _ in known], color=look.colour, linestyle=look.dashes, marker=look.marker,
        markerfacecolor=look.filling, markersize=4 + 4 * over, linewidth=1.5 + 2.5 * over, zorder=3,
        label=None if label is None else literal(label),
    )  # fmt: skip
    if known and all(low is not None for _, _, low, _ in known):
        lows, highs = [low for _, _, low, _ in known], [high for *_, high in known]
        axis.fill_between(places, lows, highs, color=look.colour, alpha=band, linewidth=0)
        for edge in (lows, highs):
            axis.plot(places, edge, color=look.colour, linestyle=look.dashes, linewidth=0.5, alpha=0.7)


def _reference_lines(axis: Axes, lines: Mapping[str, Any]) -> None:
    for name, figure in lines.items():
        if figure and figure[0] is not None:
            label, dashes = LINE_NAMES[name]
            axis.axhline(figure[0], color="black", linestyle=dashes, linewidth=0.9, label=label, zorder=2)


def _position_axis(axis: Axes, curves: Curves) -> None:
    places = sorted({int(position) + 1 for points in curves.values() for position in points})
    axis.set_ylim(0, 1.03)
    if len(places) <= 8:
        axis.set_xticks(places)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.grid(alpha=0.25)
    axis.tick_params(labelsize=8)
    _open_frame(axis)


def _front(axis: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    front = [points[label] for label in pareto(points)]
    costs, accuracies = zip(*front, strict=True)
    axis.step(
        costs, accuracies, where="post", color="black", linestyle="--", linewidth=1, zorder=2, label="Pareto front"
    )


def _cost_axis(axis: Axes, costs: Sequence[float], label: str) -> None:
    if max(costs) > 4 * max(min(costs), 1e-9):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel(label)
    axis.grid(alpha=0.25)
    _open_frame(axis)


def _panels(count: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A grid of small panels, the ones beyond ``count`` left out."""
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(2.35 * columns + 0.8, height * rows + 0.7), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def _one_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, each name once."""
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)


def _wrapped(label: str) -> str:
    """A method's label on lines that fit over a small panel, its parameters on lines of their own."""
    if len(label) <= TITLE:
        return literal(label)
    name, bracket, parameters = label.partition("(")
    return literal("\n".join([name, *wrap(bracket + parameters, TITLE)]))


def _open_frame(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
