"""Draw the figures of a bench report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ragbias_eval import ACCURACY, REFERENCE
from ragbias_eval.report.figures import (
    PALE,
    Point,
    Style,
    draw_legend,
    draw_line,
    escape_dollars,
    make_canvas,
    make_styles,
    panel_title,
)
from ragbias_eval.report.tables import prefill_costs, rank_methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_OVERLAID = 3  # maximum number of curves with bands in one panel
POSITION = "position of the gold document (1 = first)"
LOGPROB = "log-probability (nats)"
RELATIVE_LOGPROB = "log-probability\n(nats, plain mean = 0)"
TITLES = {"worst": "at the worst position", "mean": "mean over positions"}

Curves = Mapping[str, Mapping[str, Point]]  # by method, then by position, counted from 0


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
    if len(curves[scale]) <= MAX_OVERLAID:
        return draw_overlaid({"": curves[scale]}, styles, scale)
    return draw_small_multiples(curves[scale], styles, scale)


def draw_overlaid(
    curves_by_panel: Mapping[str, Curves], styles: Mapping[str, Style] | None = None, scale: str = ACCURACY
) -> Figure:
    """Draw a panel for each entry of ``curves_by_panel``, with all its curves. Keys are the panels' titles."""
    methods = max(map(len, curves_by_panel.values()))
    figure, axes = make_canvas(len(curves_by_panel), columns=2, height=2.8 + 0.1 * methods, sharey=True)
    for axis, (name, curves) in zip(axes, curves_by_panel.items(), strict=True):
        _draw_panel(axis, curves, styles or make_styles(curves), {label: label for label in curves}, scale)
        axis.set_title(escape_dollars(name), fontsize=10)
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
    estimates = [{position: point[0] for position, point in points.items()} for points in curves.values()]
    positions = sorted({int(position) + 1 for points in curves.values() for position in points})
    band = len(curves) <= MAX_OVERLAID  # more bands would hide one another, so error bars are drawn side by side
    aside = 0 if band else 0.01 * (positions[-1] - positions[0])
    for index, (label, points) in enumerate(curves.items()):
        ordered = sorted((int(position) + 1, point) for position, point in points.items())
        xs = [position + aside * (index - (len(curves) - 1) / 2) for position, _ in ordered]
        wider = estimates[index + 1 :].count(estimates[index])
        draw_line(axis, xs, [point for _, point in ordered], styles[label], names.get(label), band, wider)
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
    costs, methods = prefill_costs(result), rank_methods(result)
    if not costs:
        return None
    measures = [name for name in TITLES if all(method[name] and method[name][0] is not None for _, method in methods)]
    figure, axes = make_canvas(len(measures), columns=2, height=2.9 + 0.21 * -(-len(methods) // 2), sharey=True)
    for axis, measure in zip(axes, measures, strict=True):
        for label, method in methods:
            (cost, *spread), accuracy, style = costs[label], float(method[measure][0]), styles[label]
            axis.plot(spread, [accuracy] * 2, color=PALE, linewidth=1, zorder=1)
            points = {**style, "linestyle": "", "markeredgewidth": 1.5, "markersize": 7, "zorder": 3}
            axis.plot(cost, accuracy, label=escape_dollars(label), **points)
        xs = [cost for cost, *_ in costs.values()]
        if max(xs) > 4 * max(min(xs), 1e-9):
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_title(TITLES[measure], fontsize=10)
    return _add_labels(figure, "prefill time, in units of none", "accuracy", columns=2)
