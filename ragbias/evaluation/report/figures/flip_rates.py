"""How often the order of the documents changes the answer, beside how often nothing does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ragbias.evaluation.report.figures.panels import open_frame
from ragbias.evaluation.report.looks import literal
from ragbias.evaluation.report.tables import ranked


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
    highest = max(method["flip_rate"][2] or method["flip_rate"][0] for _, method in methods)
    axis.set_xlim(0, min(1.12, max(0.1, 1.25 * highest)))
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_ylim(len(methods) - 0.4, -0.6)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    open_frame(axis)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
