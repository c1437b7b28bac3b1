"""Pictures of study results for the docs, in a light and a dark variant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib.figure import Figure

from ragbias_eval.calibration.calibration_report import plot_channel
from ragbias_eval.demo import NotesDemo
from ragbias_eval.report.figures import INK, draw_legend, escape_dollars, render_svg

DEMO = Path("docs/results/smollm2-demo/results.json")  # written by `ragbias demo --model smollm2`
# colours of the light variant and their replacements in the dark variant; other colours suit both variants
DARK = {INK: "#e6edf3", "#ffffff": "#0d1117", "#0072b2": "#4ba3e3", "#d55e00": "#f0883e", "#9ecae1": "#2d6a94"}
TITLE_LETTERS = 58  # letters that fit above a picture of the experiments
COLOURS = "Blues"  # of heat maps; reversed in the dark variant, so that large values contrast with the page


def save_pair(figure: Figure, path: Path) -> None:
    """Write ``path-light.svg`` and ``path-dark.svg`` for pages with two themes."""
    light = render_svg(figure, path.name, fonttype="path")
    for image in (image for axis in figure.axes for image in axis.images):
        image.set_cmap(f"{COLOURS}_r")
    dark = render_svg(figure, path.name, fonttype="path")
    for colour, replacement in DARK.items():
        dark = dark.replace(colour, replacement)
    dark = dark.replace("<svg ", f'<svg fill="{DARK[INK]}" ', 1)  # matplotlib omits black, the default of SVG
    for name, text in (("light", light), ("dark", dark)):
        path.with_name(f"{path.name}-{name}.svg").write_text(text + "\n", encoding="utf-8")


def add_title(figure: Figure, title: str, letters: int = TITLE_LETTERS) -> None:
    """Draw a title, and below it one legend for all panels."""
    draw_legend(figure, columns=2)
    lines = [part for row in title.splitlines() for part in wrap(row, letters)]
    (drawn,) = figure.legends
    drawn.set_title(escape_dollars("\n".join(lines)), prop={"size": 10})
    drawn.get_title().set_multialignment("center")
    drawn.set_alignment("center")


def draw_channel(record: Mapping[str, Any]) -> Figure:
    """Draw a calibration's channel with a legend."""
    figure = plot_channel(record)
    for panel in figure.axes:
        curve, fit = panel.lines
        curve.set_label("mean over strings")
        fit.set_label("cubic fit, monotone" if fit.get_linestyle() == "-" else "cubic fit, not monotone")
    title = figure.get_suptitle()
    figure.suptitle("")
    figure.set_figheight(figure.get_figheight() + 0.5)  # for the legend
    add_title(figure, title, letters=72)
    return figure


def draw_pictures(root: Path) -> None:
    """Draw the picture of the README, as the demo draws it."""
    if (root / DEMO).is_file():
        save_pair(NotesDemo.draw(json.loads((root / DEMO).read_text(encoding="utf-8"))), root / "docs/bias")
