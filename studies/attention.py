"""Attention of a prompt's last token to the gold document, by position, layer and head.

    python -m studies.attention --model tiny --out attention.png

Sources: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536,
whose figures show attention to the gold document by its position in each layer; Zhang et al., Found in the Middle,
arXiv 2403.04797, on single heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

from ragbias.lm import DebiasedLM
from ragbias.methods import Method, get
from ragbias_eval.calibration.measurements import retrieving_layers
from ragbias_eval.calibration.samples import Sample
from ragbias_eval.report.figures import make_styles
from ragbias_eval.report.tables import make_table
from studies.experiment import (
    Result,
    Track,
    arrange_by_question,
    check_acts_on_attention,
    draw_curves,
    draw_heat_map,
    format_layers,
    make_page,
    parser,
    run,
)
from studies.layer_attention import attention_by_head

BEST = 3  # number of heads that the picture names


@dataclass(frozen=True)
class GoldAttention(Result):
    """The last token's attention to the gold document.

    Attributes:
        positions: positions of the gold document, counted from 0.
        gold: ``[Q, P, n_layers, H]``, attention to the gold document.
        other: ``[Q, P, n_layers, H]``, mean attention to the other documents.
        instead: ``[Q, P, n_layers, H]``, attention to other documents at the gold document's position, which shows the
            effect of position alone; None with only one position.
    """

    positions: list[int]
    gold: Tensor
    other: Tensor
    instead: Tensor | None

    @property
    def reference(self) -> Tensor:
        """The attention to compare with ``gold``: ``instead`` or, if it is None, ``other``."""
        return self.other if self.instead is None else self.instead

    @property
    def retrieval_layers(self) -> list[int]:
        """Layers in which ``gold`` clearly exceeds the reference, see ``retrieving_layers``."""
        by_layer = torch.stack([self.gold, self.reference], -1).mean((0, 1, 3))
        return sorted(retrieving_layers(by_layer.tolist()))

    @property
    def best_heads(self) -> list[tuple[int, int]]:
        """Layer and index of the heads in which ``gold`` exceeds the reference most."""
        excess = (self.gold - self.reference).mean((0, 1))
        return [
            divmod(index, excess.shape[1])
            for index in excess.flatten().topk(min(BEST, excess.numel())).indices.tolist()
        ]

    def figure(self) -> Figure:
        figure, (documents, best, layers, heads) = make_page(4)
        label, where, retrieve = "attention", "position of the gold document", self.retrieval_layers
        means = {"gold document": self.gold[:, :, retrieve].mean((2, 3))}
        if self.instead is not None:
            means["another document there"] = self.instead[:, :, retrieve].mean((2, 3))
        single = {f"layer {layer} head {head}": self.gold[:, :, layer, head] for layer, head in self.best_heads}
        styles, numbered = make_styles([*means, *single]), [position + 1 for position in self.positions]
        draw_curves(
            documents, numbered, means, f"mean over heads, {format_layers(retrieve)}", where, label, styles=styles
        )
        draw_curves(best, numbered, single, "to the gold document, best heads", where, label, styles=styles)
        gold = self.gold.mean(0)
        draw_heat_map(layers, gold.mean(2).T, self._numbers(), "to the gold document, mean over heads", where, label)
        heads_named = range(gold.shape[2])
        draw_heat_map(heads, gold.mean(0), heads_named, "to the gold document, mean over positions", "head", label)
        return figure

    def table(self) -> Table:
        table = make_table("Attention to the gold document by its position", "layer", *self._numbers())
        for layer, values in enumerate(self.gold.mean((0, 3)).T.tolist()):
            mark = " retrieves" if layer in self.retrieval_layers else ""
            table.add_row(f"{layer}{mark}", *(f"{value:.3f}" for value in values))
        return table

    def as_dict(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "gold": self.gold.mean(0).tolist(),
            "another": self.other.mean(0).tolist(),
            "another_at_that_position": None if self.instead is None else self.instead.mean(0).tolist(),
            "retrieval_layers": self.retrieval_layers,
            "best_heads": self.best_heads,
        }

    def _numbers(self) -> list[str]:
        return [str(position + 1) for position in self.positions]


def measure(lm: DebiasedLM, samples: Sequence[Sample], method: Method, track: Track) -> GoldAttention:
    """Measure the attention to the gold document with a method.

    Raises:
        MethodError: the method does not act on attention.
    """
    check_acts_on_attention(method)
    count = len(samples[0].prompt.documents)
    masses = [attention_by_head(lm, sample.prompt, method)[:, :, :count] for sample in track(samples)]
    positions, mass = arrange_by_question(samples, masses)
    gold = torch.stack([mass[:, index, :, :, position] for index, position in enumerate(positions)], 1)
    other = (mass.sum(4) - gold) / (count - 1)
    total = mass[..., positions].sum(1).permute(0, 3, 1, 2)  # attention to any document at each position
    instead = (total - gold) / (len(positions) - 1) if len(positions) > 1 else None
    return GoldAttention(positions, gold, other, instead)


def main(arguments: Sequence[str] | None = None) -> None:
    run(
        parser(__doc__, method="none"),
        arguments,
        lambda lm, samples, track, parsed: measure(lm, samples, get(parsed.method, parsed.model), track),
        "Attention of the last token to the gold document\n{model}, {method}",
    )


if __name__ == "__main__":
    main()
