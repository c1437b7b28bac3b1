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

from ragbias.calibration.measurements import retrieving_layers
from ragbias.evaluation.prompts import Sample
from ragbias.evaluation.report.tables import plain_table
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, get
from studies.experiment import (
    Result,
    Track,
    by_position,
    check_acts_on_attention,
    curves,
    heat_map,
    named_layers,
    page,
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
        gold: ``[P, n_layers, H]``, attention to the gold document.
        other: ``[P, n_layers, H]``, mean attention to the other documents.
        instead: ``[P, n_layers, H]``, attention to other documents at the gold document's position, which shows the
            effect of position alone. NaN with only one position.
    """

    positions: list[int]
    gold: Tensor
    other: Tensor
    instead: Tensor

    @property
    def reference(self) -> Tensor:
        """Attention that ``gold`` is compared with: ``instead``, or ``other`` if ``instead`` is not known."""
        return self.other if self.instead.isnan().any() else self.instead

    @property
    def retrieval_layers(self) -> list[int]:
        """Layers that retrieve compared with the reference, see ``retrieving_layers``."""
        by_layer = torch.stack([self.gold, self.reference], -1).mean((0, 2))
        return sorted(retrieving_layers(by_layer.tolist()))

    @property
    def best_heads(self) -> list[tuple[int, int]]:
        """Layer and index of the heads whose attention to the gold document exceeds the reference most."""
        excess = (self.gold - self.reference).mean(0)
        return [
            divmod(index, excess.shape[1])
            for index in excess.flatten().topk(min(BEST, excess.numel())).indices.tolist()
        ]

    def figure(self, title: str) -> Figure:
        figure, (layers, heads, lines) = page(title)
        label, where = "attention to the gold document", "position of the gold document"
        heat_map(layers, self.gold.mean(2).T, self._numbers(), "mean over heads", where, label)
        heat_map(heads, self.gold.mean(0), range(self.gold.shape[2]), "mean over positions", "head", label)
        retrieve = self.retrieval_layers
        by_label = {
            f"gold document, {named_layers(retrieve)}": self.gold[:, retrieve].mean((1, 2)).tolist(),
            "another document there": self.instead[:, retrieve].mean((1, 2)).tolist(),
        }
        for layer, head in self.best_heads:
            by_label[f"gold document, layer {layer} head {head}"] = self.gold[:, layer, head].tolist()
        numbered = [position + 1 for position in self.positions]
        curves(lines, numbered, by_label, "layers that retrieve, best heads", where, "attention")
        return figure

    def table(self) -> Table:
        table = plain_table("Attention to the gold document by its position", "layer", *self._numbers())
        for layer, values in enumerate(self.gold.mean(2).T.tolist()):
            mark = " retrieves" if layer in self.retrieval_layers else ""
            table.add_row(f"{layer}{mark}", *(f"{value:.3f}" for value in values))
        return table

    def as_dict(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "gold": self.gold.tolist(),
            "another": self.other.tolist(),
            "another_at_that_position": None if self.instead.isnan().any() else self.instead.tolist(),
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
    positions, mass = by_position(samples, masses)
    gold = torch.stack([each[:, :, position] for each, position in zip(mass, positions, strict=True)])
    other = (mass.sum(3) - gold) / (mass.shape[3] - 1)
    total = mass[:, :, :, positions].sum(0).permute(2, 0, 1)  # attention to any document at each position
    return GoldAttention(positions, gold, other, (total - gold) / (len(positions) - 1))


def main(arguments: Sequence[str] | None = None) -> None:
    run(
        parser(__doc__, method="none"),
        arguments,
        lambda lm, samples, track, parsed: measure(lm, samples, get(parsed.method, parsed.model), track),
        "Attention of the last token to the gold document: {model}, {method}",
    )


if __name__ == "__main__":
    main()
