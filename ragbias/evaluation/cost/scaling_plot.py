"""How the cost of methods grows with the number of documents, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

PANELS = {"prefill_ratio": "prefill", "decode_ratio": "decoding", "peak_ratio": "peak memory"}
LIMITS = {"prefill_ratio": "prefill_limit", "decode_ratio": "decode_limit"}
MARKERS = "os^Dv<>PX*"
APART = 1.025  # factor between neighbouring methods' horizontal positions, so that their bars stand side by side


def scaling(outcome: Mapping[str, Any], path: Path) -> None:
    """Draw ratio against number of documents, in a panel each for prefill, decoding and peak memory.

    Args:
        outcome: of ``run``, with several numbers of documents.
    """
    results = sorted(outcome["results"], key=lambda result: result["documents"])
    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    panels = figure.subplots(1, len(PANELS))
    for panel, (ratio, title) in zip(panels, PANELS.items(), strict=True):
        labels = [label for label in results[0]["methods"] if label != "none"]
        for index, label in enumerate(labels):
            _line(panel, results, label, ratio, index, APART ** (index - (len(labels) - 1) / 2))
        panel.axhline(1, color="black", lw=0.8)
        panel.set_xscale("log")
        counts = [result["documents"] for result in results]
        panel.xaxis.set_major_locator(FixedLocator(counts))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xticklabels([str(count) for count in counts])
        panel.set_title(title, fontsize=11)
        panel.grid(axis="y", color="#dddddd", lw=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("ratio to plain attention")
    figure.supxlabel("number of documents", fontsize=10)
    figure.suptitle(
        f"{_title(outcome)}\nmedian and range of {outcome['settings']['rounds']} rounds; "
        "thin and dashed: what the arithmetic asks for",
        fontsize=10,
    )
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)


def _line(panel: Axes, results: Sequence[Mapping[str, Any]], label: str, ratio: str, index: int, shift: float) -> None:
    costs = [result["methods"][label] for result in results]
    counts = [result["documents"] * shift for result in results]
    values = [cost[ratio] if isinstance(cost[ratio], (tuple, list)) else [cost[ratio]] * 3 for cost in costs]
    middle = [median for median, _, _ in values]
    below = [median - low for median, low, _ in values]
    above = [high - median for median, _, high in values]
    colour = f"C{index % 10}"
    panel.errorbar(
        counts,
        middle,
        yerr=[below, above],
        color=colour,
        marker=MARKERS[index % len(MARKERS)],
        ms=5,
        lw=1.6,
        capsize=2,
        label=label,
    )
    limits = [cost[LIMITS[ratio]] for cost in costs] if ratio in LIMITS else [None]
    if None not in limits:
        panel.plot(counts, np.array(limits), color=colour, lw=1, ls=(0, (2, 2)))


def _title(outcome: Mapping[str, Any]) -> str:
    model, settings = outcome["model"], outcome["settings"]
    of = f"documents of {settings['tokens']} tokens"
    if settings["total_tokens"]:
        of = f"{settings['total_tokens']} tokens in all documents together"
    batch = f", batch of {settings['batch']}" if settings["batch"] > 1 else ""
    return f"{model['name']}, {model['dtype']}, {model['device']}; {of}{batch}"
