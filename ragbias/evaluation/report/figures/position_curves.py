"""Curves of accuracy, and of the gold answer's log-probability, by the position of the gold document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ragbias.evaluation.names import REFERENCE
from ragbias.evaluation.report.figures.panels import open_frame, panel_title, panels, shared_legend
from ragbias.evaluation.report.looks import Look, literal, looks_of
from ragbias.evaluation.report.tables import ranked

OVERLAID = 3  # bands that one panel can hold
LINE_STYLES = {"closed_book": ("closed book", ":"), "oracle": ("gold document alone", "-.")}


@dataclass(frozen=True)
class Scale:
    """What the curves' values are, and the ends of their axis; None: as the values need it."""

    name: str
    ends: tuple[float, float] | None = None


ACCURACY = Scale("accuracy", (0, 1.03))
LOGPROB = Scale("log-probability (nats)")
RELATIVE_LOGPROB = Scale("log-probability\n(nats, plain mean = 0)")

# by method and position (counted from 0): estimate, low, high; any of them may be None
Curves = Mapping[str, Mapping[str, Sequence[Any]]]


def u_curves(result: Mapping[str, Any], looks: Mapping[str, Look]) -> Figure:
    """Accuracy by the gold document's position, with bootstrap bands; a panel for each method where there are many."""
    curves = {label: method["accuracy_by_position"] for label, method in ranked(result)}
    lines = result["reference_lines"]
    return _drawn(curves, looks, lines, ACCURACY)


def logprob_curves(result: Mapping[str, Any], looks: Mapping[str, Look]) -> Figure:
    """The gold answer's log-probability as ``u_curves``; minus the plain model's mean over positions, if that ran."""
    figures = {label: method["logprob"] for label, method in ranked(result) if method["logprob"]}
    if all(each["minus_plain"] for each in figures.values()):
        curves = {label: each["minus_plain"]["by_position"] for label, each in figures.items()}
        return _drawn(curves, looks, {}, RELATIVE_LOGPROB)
    curves = {label: each["by_position"] for label, each in figures.items()}
    return _drawn(curves, looks, result["logprob_reference_lines"], LOGPROB)


def _drawn(curves: Curves, looks: Mapping[str, Look], lines: Mapping[str, Any], scale: Scale) -> Figure:
    if len(curves) <= OVERLAID:
        return overlaid({"": curves}, lines, looks, scale)
    return multiples(curves, looks, lines, scale)


def overlaid(
    curves_by_panel: Mapping[str, Curves],
    lines: Mapping[str, Any] | None = None,
    looks: Mapping[str, Look] | None = None,
    scale: Scale = ACCURACY,
) -> Figure:
    """All methods in one panel; one panel for each entry, named by its key.

    Args:
        looks: by label; None: each panel's methods in their order, for labels that differ between the panels.
    """
    figure = Figure(figsize=(5.6 * len(curves_by_panel) + 1.4, 4.4), layout="constrained")
    axes = figure.subplots(1, len(curves_by_panel), sharey=True, squeeze=False)[0]
    for axis, (name, curves) in zip(axes, curves_by_panel.items(), strict=True):
        _panel(axis, curves, looks or looks_of(curves), {label: label for label in curves}, lines or {}, 0.12)
        _position_axis(axis, curves, scale)
        axis.set(title=literal(name), xlabel="position of the gold document (1 = first)")
        below = dict(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
        axis.legend(**below, frameon=False, handlelength=4, fontsize=9)
    axes[0].set_ylabel(scale.name)
    return figure


def multiples(curves: Curves, looks: Mapping[str, Look], lines: Mapping[str, Any], scale: Scale = ACCURACY) -> Figure:
    """A panel for each method but the plain model, whose curve is in all of them."""
    shown = {label: points for label, points in curves.items() if label == REFERENCE}
    others = {label: points for label, points in curves.items() if label != REFERENCE}
    figure, axes = panels(len(others), 2.0)
    names = {REFERENCE: "none (plain model)"}  # the others are named above their panels
    for axis, (label, points) in zip(axes, others.items(), strict=True):
        _panel(axis, {**shown, label: points}, looks, names, lines, 0.2)
        _position_axis(axis, curves, scale)
        axis.set_title(panel_title(label), fontsize=9)
    shared_legend(figure, axes)
    figure.supxlabel("position of the gold document (1 = first)", fontsize=10)
    figure.supylabel(scale.name, fontsize=10)
    return figure


def _panel(
    axis: Axes,
    curves: Curves,
    looks: Mapping[str, Look],
    names: Mapping[str, str],
    lines: Mapping[str, Any],
    band: float,
) -> None:
    """Curves over their intervals with opacity ``band``, and the reference ``lines``.

    A curve that equals others drawn over it is as much wider as to be seen.
    """
    estimates = [{position: point[0] for position, point in points.items()} for points in curves.values()]
    for index, (label, points) in enumerate(curves.items()):
        over = estimates[index + 1 :].count(estimates[index])
        _curve(axis, points, looks[label], names.get(label), over, band)
    for name, figure in lines.items():
        if figure and figure[0] is not None:
            text, dashes = LINE_STYLES[name]
            axis.axhline(figure[0], color="black", linestyle=dashes, linewidth=0.9, label=text, zorder=2)


def _curve(
    axis: Axes, points: Mapping[str, Sequence[Any]], look: Look, label: str | None, over: int, band: float
) -> None:
    """A line under ``over`` equal ones, and its intervals."""
    known = sorted((int(position) + 1, *point) for position, point in points.items() if point[0] is not None)
    positions = [position for position, *_ in known]
    axis.plot(
        positions, [estimate for _, estimate, _, _ in known], color=look.colour, linestyle=look.dashes,
        marker=look.marker, markerfacecolor=look.filling, markersize=4 + 4 * over, linewidth=1.5 + 2.5 * over,
        zorder=3, label=None if label is None else literal(label),
    )  # fmt: skip
    if known and all(low is not None for _, _, low, _ in known):
        lows, highs = [low for _, _, low, _ in known], [high for *_, high in known]
        axis.fill_between(positions, lows, highs, color=look.colour, alpha=band, linewidth=0)
        for edge in (lows, highs):
            axis.plot(positions, edge, color=look.colour, linestyle=look.dashes, linewidth=0.5, alpha=0.7)


def _position_axis(axis: Axes, curves: Curves, scale: Scale) -> None:
    positions = sorted({int(position) + 1 for points in curves.values() for position in points})
    if scale.ends:
        axis.set_ylim(*scale.ends)
    if scale is RELATIVE_LOGPROB:
        axis.axhline(0, color="#999999", linewidth=0.8, zorder=1)
    if len(positions) <= 8:
        axis.set_xticks(positions)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.grid(alpha=0.25)
    axis.tick_params(labelsize=8)
    open_frame(axis)
