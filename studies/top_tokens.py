"""Measure which documents hold the tokens with the highest attention weights. SIW calls such documents dense.

    python -m studies.top_tokens --model tiny --out top-tokens.png

Source: Qiang et al., Uncovering the Role of Initial Saliency in U-Shaped Attention Bias, arXiv 2512.13109, for the
share of the highest 30% of tokens in each document, and for SIW's rule that documents with many such tokens are dense.
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
from ragbias.methods import SIW
from ragbias.methods.siw import HIGHEST, count_highest
from ragbias_eval.calibration.samples import Sample
from ragbias_eval.report.tables import make_table
from studies.experiment import (
    Result,
    Track,
    arrange_by_question,
    draw_curves,
    draw_heat_map,
    format_layers,
    make_method,
    make_page,
    parser,
    run,
)
from studies.heads import token_weights


@dataclass(frozen=True)
class TopTokens(Result):
    """The distribution of the highest-weight tokens over documents.

    Attributes:
        positions: positions of the gold document, counted from 0.
        share: ``[Q, P, n_layers, n]``, share of each document in the highest-weight tokens of all documents.
        dense: ``[Q, P, n_layers, n]``, 1 for dense documents and 0 for others.
        sigma: a document is dense if its share exceeds ``sigma`` times the mean share.
        layers: layers in which SIW acts.
    """

    positions: list[int]
    share: Tensor
    dense: Tensor
    sigma: float
    layers: list[int]

    @property
    def threshold(self) -> float:
        """Share above which a document is dense."""
        return self.sigma / self.share.shape[3]

    def figure(self) -> Figure:
        figure, (lines, dense, gold) = make_page(3)
        count, middle = self.share.shape[3], len(self.positions) // 2
        shown = {
            f"gold document at {self.positions[at] + 1}": self.share[:, at, self.layers].mean(1)
            for at in sorted({0, middle, len(self.positions) - 1})
        }
        numbered = list(range(1, count + 1))
        draw_curves(
            lines, numbered, shown, f"share of the top {HIGHEST:.0%} of tokens, {format_layers(self.layers)}",
            "position of the document", "share", (f"dense above {self.threshold:.3f}", self.threshold),
        )  # fmt: skip
        often = "share of prompts"
        means = self.dense.mean((0, 1))
        draw_heat_map(dense, means, numbered, "how often a document is dense", "position of the document", often)
        at_gold = [position + 1 for position in self.positions]
        where = "position of the gold document"
        draw_heat_map(gold, self.gold_dense.T, at_gold, "how often the gold document is dense", where, often)
        return figure

    @property
    def gold_dense(self) -> Tensor:
        """Share of prompts in which the gold document is dense, ``[P, n_layers]``."""
        return torch.stack([dense[:, at] for dense, at in zip(self.dense.mean(0), self.positions, strict=True)])

    def table(self) -> Table:
        title = f"Share of the top {HIGHEST:.0%} by the document's position; dense above {self.threshold:.3f}"
        table = make_table(title, "layer", *(str(at + 1) for at in range(self.share.shape[3])), "gold is dense")
        for layer, (values, dense) in enumerate(zip(self.share.mean((0, 1)), self.gold_dense.mean(0), strict=True)):
            table.add_row(str(layer), *(f"{value:.3f}" for value in values.tolist()), f"{float(dense):.0%}")
        return table

    def as_dict(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "share": self.share.mean(0).tolist(),
            "dense": self.dense.mean(0).tolist(),
            "threshold": self.threshold,
            "layers": self.layers,
        }


def measure(lm: DebiasedLM, samples: Sequence[Sample], siw: SIW, track: Track) -> TopTokens:
    """Measure the plain model's highest-weight tokens, with weights averaged over heads as in SIW."""
    measured = []
    for sample in track(samples):
        weights = token_weights(lm, sample.prompt).mean(1)
        held = torch.stack([count_highest(layer, sample.prompt.spans) for layer in weights])
        dense = (held > siw.sigma * held.mean(1, keepdim=True)).float()
        measured.append(torch.stack([held / held.sum(1, keepdim=True).clamp_min(1), dense]))
    positions, both = arrange_by_question(samples, measured)
    return TopTokens(positions, both[:, :, 0], both[:, :, 1], siw.sigma, list(siw.layer_indices(both.shape[3])))


def main(arguments: Sequence[str] | None = None) -> None:
    run(
        parser(__doc__, method="siw"),
        arguments,
        lambda lm, samples, track, parsed: measure(lm, samples, make_method(parsed.method, parsed.model, SIW), track),
        "Tokens of highest weight\n{model}, {method}",
    )


if __name__ == "__main__":
    main()
