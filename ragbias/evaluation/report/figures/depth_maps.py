"""Heat maps of accuracy by the depth of the gold document and the number of documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ragbias.evaluation.names import ACCURACY
from ragbias.evaluation.report.figures.panels import panel_title, panels
from ragbias.evaluation.report.tables import ranked

SHADES = "cividis"  # grows lighter throughout


def depth_maps(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Accuracy by depth of the gold document and number of documents, a panel for each method.

    Args:
        results: of one model and task. ``None`` comes back unless two of them have several positions.
    """
    several = sorted(
        (each for each in results if ACCURACY in each["measures"] and len(each["positions"]) > 1),
        key=lambda each: int(each["documents"]),
    )
    if len(several) < 2:
        return None
    labels = list(dict.fromkeys(label for result in reversed(several) for label, _ in ranked(result)))
    figure, axes = panels(len(labels), 2.1)
    shades = _shades(several)
    for axis, label in zip(axes, labels, strict=True):
        axis.set_facecolor("white")
        for column, result in enumerate(several):
            method = result["methods"].get(label)
            if method is not None:
                _cells(axis, column, int(result["documents"]), method["accuracy_by_position"], shades)
        axis.set(xlim=(0, len(several)), ylim=(100, 0), yticks=[0, 25, 50, 75, 100])
        axis.set_xticks([index + 0.5 for index in range(len(several))], [str(each["documents"]) for each in several])
        axis.set_title(panel_title(label), fontsize=9)
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


def _cells(
    axis: Axes, column: int, documents: int, points: Mapping[str, Sequence[Any]], shades: tuple[float, float]
) -> None:
    """One column of cells, each as tall as the part of the depth that its position represents."""
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
