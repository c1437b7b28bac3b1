"""Measure the information flow to the last token, by layer: from the gold document, others, prefix and question.

    python -m studies.flow --model tiny --out flow.png

Flow is measured by attention, and by attention times the norm of the value. The norm matters because a token with much
attention may have a value near zero (Kobayashi et al., Attention is Not Only a Weight, EMNLP 2020).
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
from ragbias_eval.calibration.samples import Sample
from ragbias_eval.report.tables import make_table
from studies.experiment import (
    Result,
    Track,
    arrange_by_question,
    check_acts_on_attention,
    draw_curves,
    make_page,
    parser,
    run,
)
from studies.layer_attention import OTHERS, attention_by_head

PARTS = ("gold document", "other documents", *OTHERS)


@dataclass(frozen=True)
class Flow(Result):
    """The sources of the last token's information.

    Attributes:
        positions: positions of the gold document, counted from 0.
        mass: ``[Q, P, n_layers, 5]``, attention to each of ``PARTS``, averaged over heads.
        norms: ``[Q, P, n_layers, 5]``, attention times value norm, as shares of the sum over heads and parts.
    """

    positions: list[int]
    mass: Tensor
    norms: Tensor

    def figure(self) -> Figure:
        figure, (mass, norms, moved) = make_page(3)
        layers = list(range(self.mass.shape[2]))
        for axis, name, values in ((mass, "attention", self.mass), (norms, "attention times value norm", self.norms)):
            lines = {part: values[..., index].mean(1) for index, part in enumerate(PARTS)}
            draw_curves(axis, layers, lines, f"{name}, by layer", "layer", "share")
        layer = int(self.norms[..., 0].mean((0, 1)).argmax())
        lines = {part: self.norms[:, :, layer, index] for index, part in enumerate(PARTS)}
        numbered = [position + 1 for position in self.positions]
        title = f"attention times value norm, layer {layer}"
        draw_curves(moved, numbered, lines, title, "position of the gold document", "share")
        return figure

    def table(self) -> Table:
        title = "Flow to the last token by layer: attention; in brackets: attention times value norm"
        table = make_table(title, "layer", *PARTS, wrap=True)
        for layer, both in enumerate(
            zip(self.mass.mean((0, 1)).tolist(), self.norms.mean((0, 1)).tolist(), strict=True)
        ):
            table.add_row(str(layer), *(f"{mass:.3f} ({norms:.3f})" for mass, norms in zip(*both, strict=True)))
        return table

    def as_dict(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "parts": PARTS,
            "attention": self.mass.mean(0).tolist(),
            "attention_times_value_norm": self.norms.mean(0).tolist(),
        }


def measure(lm: DebiasedLM, samples: Sequence[Sample], method: Method, track: Track) -> Flow:
    """Measure the flow with a method.

    Raises:
        MethodError: the method does not act on attention.
    """
    check_acts_on_attention(method)
    measured = []
    for sample in track(samples):
        mass, norms = (_parts(attention_by_head(lm, sample.prompt, method, by), sample) for by in (False, True))
        norms = norms.sum(1)
        measured.append(torch.stack([mass.mean(1), norms / norms.sum(1, keepdim=True)]))
    positions, both = arrange_by_question(samples, measured)
    return Flow(positions, both[:, :, 0], both[:, :, 1])


def _parts(mass: Tensor, sample: Sample) -> Tensor:
    """Sum values by document ``[..., n + 3]`` to values by part ``[..., 5]``."""
    documents, others = mass.split([len(sample.prompt.documents), len(OTHERS)], dim=-1)
    gold = documents[..., sample.gold, None]
    return torch.cat([gold, documents.sum(-1, keepdim=True) - gold, others], dim=-1)


def main(arguments: Sequence[str] | None = None) -> None:
    run(
        parser(__doc__, method="none"),
        arguments,
        lambda lm, samples, track, parsed: measure(lm, samples, get(parsed.method, parsed.model), track),
        "Information flow to the last token\n{model}, {method}",
    )


if __name__ == "__main__":
    main()
