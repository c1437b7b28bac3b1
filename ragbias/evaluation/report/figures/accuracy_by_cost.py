"""Accuracy against cost, with the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ragbias.evaluation.report.figures.panels import open_frame
from ragbias.evaluation.report.looks import Look, literal
from ragbias.evaluation.report.tables import cost_kind, cost_of, ranked

COST_LABELS = {
    "prefill_ratio": "prefill time, in units of none",
    "seconds_ratio": "time per answer, in units of none",
}
TITLES = {"worst": "at the worst position", "mean": "mean over positions"}


def accuracy_by_cost(result: Mapping[str, Any], looks: Mapping[str, Look]) -> Figure | None:
    """Worst and mean accuracy against cost, the methods on the Pareto front joined; ``None`` without any cost."""
    kind = cost_kind(result)
    if kind is None:
        return None
    methods = ranked(result)
    costs = {label: cost_of(result, label) or [None] for label, _ in methods}
    measures = [name for name in TITLES if all(method[name] and method[name][0] is not None for _, method in methods)]
    height = max(4.0, 0.235 * len(costs) + 1.2)
    figure = Figure(figsize=(4.3 * len(measures) + 2.6, height), layout="constrained")
    axes = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axis, measure in zip(axes, measures, strict=True):
        points = {label: (float(costs[label][0] or 0), float(method[measure][0])) for label, method in methods}
        _front(axis, points)
        for label, (cost, accuracy) in points.items():
            look = looks[label]
            _, *spread = costs[label]
            if len(spread) == 2 and spread[0] is not None:
                axis.plot(spread, [accuracy] * 2, color="#999999", linewidth=1, zorder=1)
            axis.plot(
                cost, accuracy, marker=look.marker, color=look.colour, markerfacecolor=look.filling,
                markeredgewidth=1.5, markersize=8, linestyle="", label=literal(label), zorder=3,
            )  # fmt: skip
        _cost_axis(axis, [cost for cost, _ in points.values()], COST_LABELS[kind])
        axis.set_title(TITLES[measure], fontsize=10)
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


def _front(axis: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    costs, accuracies = zip(*(points[label] for label in pareto(points)), strict=True)
    style: dict[str, Any] = dict(color="black", linestyle="--", linewidth=1, zorder=2)
    axis.step(costs, accuracies, where="post", label="Pareto front", **style)


def _cost_axis(axis: Axes, costs: Sequence[float], label: str) -> None:
    if max(costs) > 4 * max(min(costs), 1e-9):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel(label)
    axis.grid(alpha=0.25)
    open_frame(axis)
