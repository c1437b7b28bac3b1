"""Pictures of position bias."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from ragbias.evaluation.positions import Curve

STYLES = ("o-", "s-", "^--", "v:", "D-.", "x--")
COLOURS = ("#444444", "#d1495b", "#2e86ab", "#e9a23b", "#6a994e", "#8e6c8a")


def u_curves(results: Mapping[int, Mapping[str, Curve]], title: str, path: Path) -> None:
    """Accuracy by the gold document's position, one panel for each number of documents, one line for each method."""
    figure = Figure(figsize=(6 * len(results), 4.6), layout="constrained")
    axes = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axis, (documents, curves) in zip(axes, results.items(), strict=True):
        for index, (name, curve) in enumerate(curves.items()):
            accuracy = curve.accuracy_by_position
            axis.plot(
                list(accuracy),
                list(accuracy.values()),
                STYLES[index % len(STYLES)],
                color=COLOURS[index % len(COLOURS)],
                linewidth=3 if name == "pine" else 1.6,
                label=f"{name} (flips {curve.flip_rate:.0%})",
            )
        axis.set(
            xlabel="position of the document that holds the answer",
            title=f"{documents} documents",
            xticks=list(next(iter(curves.values())).accuracy_by_position),
            ylim=(0, 1.02),
        )
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8, loc="lower center")
    axes[0].set_ylabel("accuracy")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
