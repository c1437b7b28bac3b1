"""Pictures of position bias, from the aggregates of a bench."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ragbias.evaluation import ACCURACY, REFERENCE
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
from ragbias.evaluation.report.tables import costs_of, ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OVERLAID = 3  # maximum number of curves in one panel of a report, and of bands in any panel
POSITION = "position of the gold document (1 = first)"
LOGPROB = "log-probability (nats)"
RELATIVE_LOGPROB = "log-probability\n(nats, plain mean = 0)"
TITLES = {"worst": "at the worst position", "mean": "mean over positions"}

Curves = Mapping[str, Mapping[str, Point]]  # keys: method, then position counted from 0


def u_curves(result: Mapping[str, Any], styles: Mapping[str, Style]) -> Figure:
    """Draw accuracy by position of the gold document, with intervals, in a panel per method if there are many."""
    curves = {label: method["accuracy_by_position"] for label, method in ranked(result)}
    return _curves(curves, styles, ACCURACY)


def logprob_curves(result: Mapping[str, Any], styles: Mapping[str, Style]) -> Figure:
    """Draw the log-probability of the gold answer by position, minus the plain model's mean if it ran."""
    figures = {label: method["logprob"] for label, method in ranked(result) if method["logprob"]}
    if all(method["minus_plain"] for method in figures.values()):
        curves = {label: method["minus_plain"]["by_position"] for label, method in figures.items()}
        return _curves(curves, styles, RELATIVE_LOGPROB)
    curves = {label: method["by_position"] for label, method in figures.items()}
    return _curves(curves, styles, LOGPROB)


def _curves(curves: Curves, styles: Mapping[str, Style], scale: str) -> Figure:
    if len(curves) <= OVERLAID:
        return overlaid({"": curves}, styles, scale)
    return multiples(curves, styles, scale)


def overlaid(
    curves_by_panel: Mapping[str, Curves], styles: Mapping[str, Style] | None = None, scale: str = ACCURACY
) -> Figure:
    """Draw a panel for each entry, with its key as title and the curves of its methods."""
    methods = max(map(len, curves_by_panel.values()))
    figure, axes = canvas(len(curves_by_panel), columns=2, height=2.8 + 0.1 * methods, sharey=True)
    for axis, (name, curves) in zip(axes, curves_by_panel.items(), strict=True):
        _panel(axis, curves, styles or styles_of(curves), {label: label for label in curves}, scale)
        axis.set_title(literal(name), fontsize=10)
    return _labelled(figure, POSITION, scale, columns=2)


def multiples(curves: Curves, styles: Mapping[str, Style], scale: str = ACCURACY) -> Figure:
    """Draw a panel for each method, with the plain model's curve in every panel."""
    plain = {label: points for label, points in curves.items() if label == REFERENCE}
    others = {label: points for label, points in curves.items() if label != REFERENCE}
    # one scale per row, because a single bad method would flatten all curves; panels are sorted by rank
    figure, axes = canvas(len(others), height=1.9, sharey=True if scale == ACCURACY else "row")
    for axis, (label, points) in zip(axes, others.items(), strict=True):
        _panel(axis, {**plain, label: points}, styles, {REFERENCE: "none (plain model)"}, scale)
        axis.set_title(panel_title(label), fontsize=9)
    return _labelled(figure, POSITION, scale)


def _labelled(figure: Figure, x: str, y: str, columns: int = 3) -> Figure:
    """Add labels of all axes and a legend."""
    figure.supxlabel(x, fontsize=10)
    figure.supylabel(y, fontsize=10)
    legend(figure, columns)
    return figure


def _panel(axis: Axes, curves: Curves, styles: Mapping[str, Style], names: Mapping[str, str], scale: str) -> None:
    estimates = [{position: point[0] for position, point in points.items()} for points in curves.values()]
    positions = sorted({int(position) + 1 for points in curves.values() for position in points})
    band = len(curves) <= OVERLAID  # more bands would hide each other; error bars are drawn side by side
    aside = 0 if band else 0.01 * (positions[-1] - positions[0])
    for index, (label, points) in enumerate(curves.items()):
        ordered = sorted((int(position) + 1, point) for position, point in points.items())
        xs = [position + aside * (index - (len(curves) - 1) / 2) for position, _ in ordered]
        wider = estimates[index + 1 :].count(estimates[index])
        line(axis, xs, [point for _, point in ordered], styles[label], names.get(label), band, wider)
    if scale == ACCURACY:
        highest = max((point[2] or point[0] or 0 for points in curves.values() for point in points.values()), default=1)
        axis.set_ylim(0, max(axis.get_ylim()[1], min(1.03, 1.1 * highest)))
    if scale == RELATIVE_LOGPROB:
        axis.axhline(0, color=PALE, linewidth=0.8, zorder=1)
    if len(positions) <= 5:
        axis.set_xticks(positions)
    else:
        axis.locator_params(axis="x", nbins=5, integer=True)


def accuracy_by_cost(result: Mapping[str, Any], styles: Mapping[str, Style]) -> Figure | None:
    """Draw worst and mean accuracy against cost. Return None if no cost was measured."""
    costs, methods = costs_of(result), ranked(result)
    if not costs:
        return None
    measures = [name for name in TITLES if all(method[name] and method[name][0] is not None for _, method in methods)]
    figure, axes = canvas(len(measures), columns=2, height=2.9 + 0.21 * -(-len(methods) // 2), sharey=True)
    for axis, measure in zip(axes, measures, strict=True):
        for label, method in methods:
            (cost, *spread), accuracy, style = costs[label], float(method[measure][0]), styles[label]
            axis.plot(spread, [accuracy] * 2, color=PALE, linewidth=1, zorder=1)
            axis.plot(
                cost, accuracy, marker=style.marker, color=style.colour, markerfacecolor=style.filling,
                markeredgewidth=1.5, markersize=7, linestyle="", label=literal(label), zorder=3,
            )  # fmt: skip
        xs = [cost for cost, *_ in costs.values()]
        if max(xs) > 4 * max(min(xs), 1e-9):
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_title(TITLES[measure], fontsize=10)
    return _labelled(figure, "prefill time, in units of none", "accuracy", columns=2)


def flip_rates(result: Mapping[str, Any]) -> Figure | None:
    """Draw flip rates with intervals and noise floors. Return None if no question ran in two orders."""
    methods = [(label, method) for label, method in ranked(result) if method["flip_rate"]]
    if not methods:
        return None
    methods.sort(key=lambda item: item[1]["flip_rate"][0])
    figure, (axis,) = canvas(height=0.5 + 0.42 * len(methods))
    bars(axis, [label for label, _ in methods], {"flips, 95% interval": [method["flip_rate"] for _, method in methods]})
    floors = [(row, method["noise_floor"][0]) for row, (_, method) in enumerate(methods) if method["noise_floor"]]
    if floors:
        rows, values = zip(*floors, strict=True)
        label = "noise floor: same order repeated"
        axis.plot(values, rows, "D", color=INK, markerfacecolor="white", clip_on=False, zorder=4, label=label)
    axis.set_xlabel("share of questions")
    legend(figure, columns=2)
    return figure
