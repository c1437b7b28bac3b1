"""Pictures of an audit, readable in black and white."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ragbias.evaluation.audit.outcomes import Audit
from ragbias.evaluation.audit.position_preference import POSITIONS
from ragbias.evaluation.audit.verdict import WORTH
from ragbias.evaluation.measures.bootstrap import Interval
from ragbias.evaluation.report.looks import Look, literal, looks_of

BARS: tuple[dict[str, Any], ...] = ({"color": "#444444"}, {"color": "white", "edgecolor": "#444444", "hatch": "////"})


def flip_figure(audit: Audit) -> Figure:
    """Flips under several orders beside those in the same order, for each method."""
    figure = Figure(figsize=(7, 1.4 + 0.7 * len(audit.outcomes)), layout="constrained")
    axis = figure.subplots()
    names = ("documents in other orders", "same order again (noise)")
    for bar, (name, style) in enumerate(zip(names, BARS, strict=True)):
        for at, outcome in enumerate(audit.outcomes.values()):
            interval = outcome.floor if bar else outcome.flips
            axis.barh(
                at + 0.38 * (bar - 0.5),
                interval.estimate,
                0.34,
                xerr=_whiskers([interval]),
                capsize=3,
                ecolor="#999999",
                label=None if at else name,
                **style,
            )
            axis.annotate(
                f"{interval.estimate:.0%}",
                (interval.high, at + 0.38 * (bar - 0.5)),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
    axis.axvline(WORTH, color="black", linestyle=":", linewidth=1)
    axis.set_yticks(range(len(audit.outcomes)), list(map(literal, audit.outcomes)))
    axis.invert_yaxis()
    axis.set_xlim(0, 1.08)
    axis.xaxis.set_major_formatter(PercentFormatter(1))
    axis.set_xlabel(f"questions whose answer changes (dotted: {WORTH:.0%})")
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def preference_figure(audit: Audit) -> Figure:
    """How sure the answer is with its document moved, and from where answers are taken more often than by chance."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    moved, taken = figure.subplots(1, 2)
    looks = looks_of(audit.outcomes)
    for index, (label, outcome) in enumerate(audit.outcomes.items()):
        if moved_to := outcome.logprob_by_position:
            _line(moved, [moved_to[position] for position in POSITIONS], label, looks[label], 0.05 * index)
        if outcome.preference.excess:
            _line(taken, outcome.preference.excess, label, looks[label], 0.05 * index)
    moved.set_xticks(range(len(POSITIONS)), POSITIONS)
    moved.set_xlabel("where the answer's document is put")
    moved.set_ylabel("log-probability of the answer,\ndifference to the mean")
    parts = max(len(each.preference.excess) for each in audit.outcomes.values())
    taken.set_xticks(range(parts), [f"{part + 1}/{parts}" for part in range(parts)])
    taken.set_xlabel("part of the positions, from first to last")
    taken.set_ylabel("answers taken from there,\nbeyond what is expected")
    taken.yaxis.set_major_formatter(PercentFormatter(1))
    named: dict[str, Any] = {}
    for axis in (moved, taken):
        axis.axhline(0, color="#999999", linewidth=0.8, zorder=0)
        handles, labels = axis.get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True)) | named
        if not labels:
            text = "too few answers whose\ndocument could be told"
            axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center")
            axis.set_yticks([])
    figure.legend(
        named.values(), named.keys(), loc="outside upper center", ncols=4, frameon=False, handlelength=4, fontsize=9
    )
    return figure


def _line(axis: Axes, values: list[Interval], label: str, look: Look, aside: float) -> None:
    at = [index + aside for index in range(len(values))]  # beside each other where they are equal
    axis.errorbar(
        at,
        [value.estimate for value in values],
        yerr=_whiskers(values),
        color=look.colour,
        linestyle=look.dashes,
        marker=look.marker,
        markerfacecolor=look.filling,
        capsize=3,
        label=literal(label),
    )


def _whiskers(values: list[Interval]) -> list[list[float]]:
    return [
        [value.estimate - value.low for value in values],
        [value.high - value.estimate for value in values],
    ]
