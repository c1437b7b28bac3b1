"""Pictures of study results for the docs, in a light and a dark variant."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ragbias.evaluation import REFERENCE
from ragbias.evaluation.report.charts import before_and_after
from ragbias.evaluation.report.figures import INK, svg
from ragbias.methods import DEFAULT_METHOD
from studies.stored_runs import read_stored

POSITIONS = "smollm2-10-positions"  # the study with the gold document at every position
# colours of the light variant and their replacements in the dark variant; other colours suit both variants
DARK = {INK: "#e6edf3", "#ffffff": "#0d1117", "#0072b2": "#4ba3e3", "#d55e00": "#f0883e", "#9ecae1": "#2d6a94"}


def save_pair(figure: Figure, path: Path) -> None:
    """Write ``path-light.svg`` and ``path-dark.svg`` for pages with two themes."""
    light = svg(figure, path.name, fonttype="path")
    dark = light
    for colour, replacement in DARK.items():
        dark = dark.replace(colour, replacement)
    dark = dark.replace("<svg ", f'<svg fill="{DARK[INK]}" ', 1)  # matplotlib omits black, the default of SVG
    for name, text in (("light", light), ("dark", dark)):
        path.with_name(f"{path.name}-{name}.svg").write_text(text + "\n", encoding="utf-8")


def cell_text(axis: Axes, at: tuple[float, float], value: float, dark: bool) -> None:
    """Write a number into a cell of a heat map, black on light cells and white on dark cells in both variants."""
    colour = "#fefefe" if dark else "#010101"  # ``DARK`` does not replace these colours
    axis.text(*at, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)


def draw_pictures(root: Path) -> None:
    """Draw the README's picture: the plain model and the default method by position."""
    if not (root / "docs/results" / POSITIONS).is_dir():
        return
    (result,) = read_stored(root / "docs/results" / POSITIONS)["results"]
    methods = {label: result["methods"][label]["logprob"] for label in (REFERENCE, DEFAULT_METHOD)}
    curves = {label: figures["minus_plain"]["by_position"] for label, figures in methods.items()}
    save_pair(before_and_after(curves, "SmolLM2", DEFAULT_METHOD), root / "docs/bias")
