"""Heat maps of the attention to each document, layer by layer, one panel for each method."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from ragbias.evaluation.inspecting import View
from ragbias.evaluation.plotting import literal

MARK = "▸"
MOST_TICKS = 20


def heat_maps(views: Mapping[str, View], title: str) -> Figure:
    """The views side by side on one scale, darker for more attention.

    A mark at a layer's number says that it retrieves.
    """
    layers, documents = next(iter(views.values())).attention.shape
    height = 2.4 + min(6.0, 0.28 * layers)
    figure = Figure(figsize=(1.6 + len(views) * max(3.0, 0.24 * documents), height), layout="constrained")
    panels = figure.subplots(1, len(views), squeeze=False)[0]
    highest = max(float(view.attention.max()) for view in views.values())
    image = None
    for panel, (label, view) in zip(panels, views.items(), strict=True):
        image = panel.imshow(
            view.attention.numpy(), cmap="Greys", vmin=0, vmax=highest, aspect="auto", interpolation="nearest"
        )
        retrieve = view.retrieval_layers
        shown = sorted({*range(0, layers, -(-layers // MOST_TICKS)), *retrieve})
        panel.set_yticks(shown, [f"{MARK} {layer}" if layer in retrieve else str(layer) for layer in shown])
        for tick, layer in zip(panel.get_yticklabels(), shown, strict=True):
            tick.set_fontweight("bold" if layer in retrieve else "normal")
        step = -(-documents // MOST_TICKS)
        panel.set_xticks(range(0, documents, step), [str(place + 1) for place in range(0, documents, step)])
        panel.tick_params(labelsize=8)
        panel.set_title(literal(label), fontsize=11)
    panels[0].set_ylabel("layer")
    if any(view.retrieval_layers for view in views.values()):
        title += f"\n{MARK} layers that look at the document with the answer"
    figure.suptitle(literal(title), fontsize=10)
    figure.supxlabel("place of the document, as retrieved", fontsize=10)
    assert image is not None
    figure.colorbar(image, ax=list(panels), label="attention, mean over heads", pad=0.01)
    return figure
