"""Plot the cost of methods against the number of documents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragbias_eval.report.figures import INK, draw_legend, draw_line, make_canvas, make_styles

PANELS = {
    "prefill_ratio": ("prefill", "prefill_limit"),
    "decode_ratio": ("decoding", "decode_limit"),
    "peak_ratio": ("peak memory", None),
}
APART = 1.025  # shifts neighbouring methods by this factor, so that their bars do not overlap


def plot_scaling(outcome: Mapping[str, Any], path: Path) -> None:
    """Plot each method's time and memory relative to the plain model against the number of documents.

    ``outcome`` is the result of ``speed.run``.
    """
    results = sorted(outcome["results"], key=lambda result: result["documents"])
    counts = [result["documents"] for result in results]
    labels = [label for label in results[0]["methods"] if label != "none"]
    styles = make_styles(["none", *labels])
    figure, panels = make_canvas(len(PANELS), height=3.2)
    for panel, (ratio, (name, limit)) in zip(panels, PANELS.items(), strict=True):
        for index, label in enumerate(labels):
            shift = APART ** (index - (len(labels) - 1) / 2)
            costs = [result["methods"][label] for result in results]
            points = [cost[ratio] if isinstance(cost[ratio], (tuple, list)) else [cost[ratio]] * 3 for cost in costs]
            at = [count * shift for count in counts]
            draw_line(panel, at, points, styles[label], label, band=False)
            if limit is not None and all(cost[limit] is not None for cost in costs):
                panel.plot(at, [cost[limit] for cost in costs], color=styles[label]["color"], lw=0.8, ls=(0, (2, 2)))
        panel.axhline(1, color=INK, lw=0.8)
        panel.set_xscale("log")
        panel.set_xticks(counts, [str(count) for count in counts])
        panel.set_xticks([], minor=True)
        panel.set_title(name, fontsize=10)
    rounds = f"median and range of {outcome['settings']['rounds']} rounds; thin: limit by arithmetic"
    figure.supxlabel(f"number of documents\n{_title(outcome)}\n{rounds}", fontsize=9)
    figure.supylabel("ratio to plain attention", fontsize=10)
    draw_legend(figure)
    figure.savefig(path, dpi=130)


def _title(outcome: Mapping[str, Any]) -> str:
    model, settings = outcome["model"], outcome["settings"]
    size = f"documents of {settings['tokens']} tokens"
    if settings["total_tokens"]:
        size = f"{settings['total_tokens']} tokens in all documents together"
    batch = f", batch of {settings['batch']}" if settings["batch"] > 1 else ""
    return f"{model['name']}, {model['dtype']}, {model['device']}; {size}{batch}"
