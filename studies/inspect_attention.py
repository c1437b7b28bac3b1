"""Attention of the last token to each document by layer, with the gold document first, in the middle and last.

    python -m studies.inspect_attention --model smollm2 \\
        --questions questions.jsonl --out attention.png

For each method, a row of panels shows how each layer distributes its attention over the documents. The last panel shows
the attention to the gold document by its position. ``--intervene`` adds rows with interventions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator
from rich.table import Table
from torch import Tensor

from ragbias.cli.terminal import console, progress, quiet_libraries, write_json
from ragbias.data.questions import read_questions
from ragbias.errors import RagBiasError
from ragbias.lm import DebiasedLM
from ragbias.methods import DEFAULT_METHOD, parse_methods
from ragbias_eval.report.figures import PALE, WIDTH, draw_line, escape_dollars, make_styles, save_figure
from ragbias_eval.report.tables import make_table
from studies import arguments_of
from studies.experiment import format_layers
from studies.interventions import parse_interventions
from studies.layer_attention import POSITIONS, View, measure_views, view_positions

RETRIEVES = "▸"
MOST_TICKS = 20
LEAST = 0.01  # minimum share of attention to documents; below it, a layer's distribution is noise and is not drawn
LIGHTEST, DARKEST = 1 / 8, 8.0  # multiples of an even share
MOST_RATIO = 1024  # largest ratio that is drawn; ratios are clipped to 1 / MOST_RATIO and MOST_RATIO
LETTERS, LEGEND = 54, 62  # letters in a line of a row's title, and in a line of the legend
SHADES = LogNorm(LIGHTEST, DARKEST)


def draw_heat_maps(views: Mapping[str, View], title: str) -> Figure:
    """Draw the views, one row each.

    If the gold document is known, its position is framed, and ``RETRIEVES`` marks the layers that retrieve. Otherwise
    documents are shown in retrieved order.
    """
    layers, documents = next(iter(views.values())).attention.shape
    known = all(view.moved is not None for view in views.values())
    columns = len(POSITIONS) if known else 1
    titles = {label: "\n".join(_wrap_label(label, LETTERS)) for label in views}
    lines = 1 + max(title.count("\n") for title in titles.values())
    heights = [len(views) * (1.2 + min(4.0, 0.2 * layers) + 0.16 * lines), 3.2 + 0.4 * len(views)][: 1 + known]
    figure = Figure(figsize=(WIDTH, 0.9 + sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    upper = parts[0]
    panels = upper.subplots(len(views), columns, squeeze=False)
    for row, (label, view) in zip(panels, views.items(), strict=True):
        masses = [view.attention] if view.moved is None else list(view.moved)
        totals = torch.stack(masses).sum(2).mean(0)
        for column, (panel, mass) in enumerate(zip(row, masses, strict=True)):
            _draw_heat_map(panel, mass, totals)
            position = view_positions(documents)[column] if known else None
            _label_positions(panel, documents, layers, position)
            _label_layers(panel, layers, view.retrieval_layers if column == 0 else None)
            where = f"gold {POSITIONS[column]}" if known else "as retrieved"
            middle = column == columns // 2  # the title of the middle panel also names the method
            panel.set_title(escape_dollars(f"{titles[label]}\n{where}" if middle else where), fontsize=9.5)
        _label_totals(row[-1], totals)
    upper.supylabel("layer", fontsize=10)
    upper.supxlabel("position of the document", fontsize=10)
    bar = upper.colorbar(
        ScalarMappable(SHADES, "Greys"),
        ax=panels,
        label="share of a layer's attention to documents, in even shares",
        extend="both",
        shrink=0.9,
        aspect=30,
        pad=0.02,
    )
    bar.minorticks_off()
    bar.set_ticks([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8], labels=["1/8", "1/4", "1/2", "1 (even)", "2", "4", "8"])
    if known:
        _draw_gold(parts[1].subplots(), views)
        title += f"\n{RETRIEVES} layers that attend to the document with the answer (gold); its position is framed"
    title += f"\nhatched: layers with less than {LEAST:.0%} of their attention on documents"
    figure.suptitle(escape_dollars(title), fontsize=10)
    return figure


def _draw_heat_map(panel: Axes, mass: Tensor, totals: Tensor) -> None:
    """Draw how each layer distributes its attention over the documents. Layers with less than ``LEAST`` are hatched."""
    shares = (mass / mass.sum(1, keepdim=True) * mass.shape[1]).nan_to_num(0).clamp_min(LIGHTEST).numpy()
    hidden = np.broadcast_to((totals < LEAST).numpy()[:, None], shares.shape)
    panel.imshow(np.ma.array(shares, mask=hidden), cmap="Greys", norm=SHADES, aspect="auto", interpolation="nearest")
    for layer in np.flatnonzero(hidden[:, 0]):
        corner = (-0.5, layer - 0.5)
        panel.add_patch(Rectangle(corner, mass.shape[1], 1, facecolor="none", edgecolor="#bbbbbb", hatch="////", lw=0))


def _label_positions(panel: Axes, documents: int, layers: int, gold: int | None) -> None:
    step = -(-documents // (MOST_TICKS // 3))
    ticks = range(0, documents, step)
    panel.set_xticks(ticks, [str(position + 1) for position in ticks])
    panel.tick_params(labelsize=8)
    if gold is not None:
        frame = Rectangle((gold - 0.5, -0.5), 1, layers, fill=False, edgecolor="black", lw=1.4, clip_on=False, zorder=4)
        panel.add_patch(frame)


def _label_layers(panel: Axes, layers: int, retrieve: list[int] | None) -> None:
    """Label the layers in the first panel, in bold if they retrieve. Other panels have no labels."""
    if retrieve is None:
        panel.set_yticks([])
        return
    labelled = sorted({*range(0, layers, -(-layers // MOST_TICKS)), *retrieve})
    panel.set_yticks(labelled, [f"{RETRIEVES} {layer}" if layer in retrieve else str(layer) for layer in labelled])
    for tick, layer in zip(panel.get_yticklabels(), labelled, strict=True):
        tick.set_fontweight("bold" if layer in retrieve else "normal")


def _label_totals(panel: Axes, totals: Tensor) -> None:
    """Label each layer's share of attention to documents, at the right of the last panel."""
    layers = range(0, len(totals), -(-len(totals) // MOST_TICKS))
    axis = panel.secondary_yaxis("right")
    axis.set_yticks(list(layers), [f"{float(totals[layer]):.0%}" for layer in layers])
    axis.tick_params(labelsize=7.5, length=0)
    axis.set_ylabel("to documents", fontsize=8)


def _draw_gold(axis: Axes, views: Mapping[str, View]) -> None:
    """Draw the attention to the gold document relative to the average other document, in the layers that retrieve."""
    styles = make_styles(views)
    for index, (label, view) in enumerate(views.items()):
        ratios = gold_ratios(view)
        aside = 0.06 * (index - (len(views) - 1) / 2)  # draw equal points side by side
        numbers = ", ".join(f"{ratio:.3g}" for ratio in ratios)
        named = "\n".join(
            _wrap_label(f"{label}: {numbers} ({RETRIEVES} {format_layers(view.retrieval_layers)})", LEGEND)
        )
        points = [[float(ratio), None, None] for ratio in np.clip(ratios, 1 / MOST_RATIO, MOST_RATIO)]
        draw_line(axis, [position + aside for position in range(len(POSITIONS))], points, styles[label], named)
    axis.axhline(1, color=PALE, linewidth=0.8, zorder=0)
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xticks(range(len(POSITIONS)), POSITIONS)
    axis.margins(0.15)
    axis.set_xlabel("position of the gold document")
    axis.set_ylabel("attention relative to\nthe average other document", fontsize=9)
    axis.set_title("Attention to the gold document (flat: at any position)", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.figure.legend(loc="outside lower center", frameon=False, handlelength=4, fontsize=8.5)


def gold_ratios(view: View) -> list[float]:
    """Attention to the gold document relative to the average other document, at each gold position.

    Both are sums over ``retrieval_layers``.
    """
    ratios = []
    for layers in view.gold_by_position.values():
        gold, other = (sum(layers[layer][part] for layer in view.retrieval_layers) for part in (0, 1))
        ratios.append(gold / max(other, 1e-9))
    return ratios


def _wrap_label(text: str, letters: int) -> list[str]:
    """Wrap a label. Lines may also break after commas."""
    return wrap(re.sub(r",(?=\S)", ", ", text), letters)


def attention_table(views: Mapping[str, View]) -> Table:
    """Make a table of the attention by layer: to all documents, and to the gold document by its position."""
    headings = [name for label, view in views.items() for name in (label, *(["gold at each"] if view.gold else []))]
    made = make_table("Attention by layer: all documents; gold document first, middle, last", "layer", *headings)
    for layer in range(len(next(iter(views.values())).attention)):
        cells = []
        for view in views.values():
            cells.append(f"{float(view.attention[layer].sum()):.3f}")
            if view.gold:
                gold = "  ".join(f"{layers[layer][0]:.3f}" for layers in view.gold_by_position.values())
                cells.append(f"retrieves {gold}" if layer in view.retrieval_layers else gold)
        made.add_row(str(layer), *cells)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    options = arguments_of(__doc__)
    options.add_argument("--questions", type=Path, required=True, help="JSON lines: question, documents, answer, gold")
    options.add_argument("--out", type=Path, required=True, help="picture to write: .png, .svg or .pdf")
    options.add_argument("--model", required=True, help="tiny, smollm2, a hub name, a folder or a GGUF file")
    options.add_argument("--methods", default=f"none,{DEFAULT_METHOD}", help="comma-separated, one row of panels each")
    options.add_argument("--intervene", action="append", default=[], help="e.g. hide(queries=question,keys=gold)")
    options.add_argument("--limit", type=int, help="number of questions; default: all")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    parsed = options.parse_args(arguments)
    try:
        quiet_libraries()
        asked, methods = read_questions(parsed.questions)[: parsed.limit], parse_methods(parsed.methods, parsed.model)
        interventions = {text: parse_interventions(text) for text in parsed.intervene}
        lm = DebiasedLM.from_pretrained(parsed.model, method="none")
        with progress() as bar:
            task = bar.add_task("", total=len(asked) * len(methods) * (1 + len(interventions)))
            views = measure_views(
                lm, asked, methods, lambda label: bar.update(task, advance=1, description=label), interventions
            )
        known = next(iter(views.values())).known
        console.print(f"The document with the answer is known for {known} of {len(asked)} questions")
        title = f"Attention of the last token: {parsed.model}, {known or len(asked)} questions"
        save_figure(draw_heat_maps(views, title), parsed.out)
        console.print(attention_table(views))
        write_json({label: view.as_dict() for label, view in views.items()}, parsed.json)
    except RagBiasError as error:
        options.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
