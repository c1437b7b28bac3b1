"""Measure whether the most position-aware heads find the gold document at any position.

    python -m studies.heads --model tiny --out heads.png

Source: Zhang et al., Found in the Middle: How Language Models Use Long Contexts Better via Plug-and-Play Positional
Encoding, arXiv 2403.04797, for the score by which Ms-PoE sorts heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

from ragbias.binding.binding import Binding
from ragbias.binding.hooks import attached
from ragbias.lm import DebiasedLM
from ragbias.methods import MsPoE, SequenceCall
from ragbias.methods.attention_sorting import DocumentAttention
from ragbias.prompt import TokenisedPrompt
from ragbias_eval.calibration.samples import Sample
from ragbias_eval.report.tables import make_table
from studies.experiment import (
    Result,
    Track,
    arrange_by_question,
    draw_curves,
    draw_heat_map,
    make_method,
    make_page,
    parser,
    run,
)

PART = 4  # the most and the least aware heads are each one quarter of the heads


@dataclass(frozen=True)
class HeadAwareness(Result):
    """The position-awareness of each head.

    Attributes:
        positions: positions of the gold document, counted from 0.
        score: ``[Q, P, n_layers, H]``, share of tokens with more than ``alpha`` times the mean weight.
        gold: ``[Q, P, n_layers, H]``, attention to the gold document.
        most, least: ``[Q, P, n_layers]``, attention to the gold document, averaged over the quarter of heads with the
            highest or lowest score in the prompt and layer.
    """

    positions: list[int]
    score: Tensor
    gold: Tensor
    most: Tensor
    least: Tensor

    def figure(self) -> Figure:
        figure, (lines, scores) = make_page(2)
        count = self.score.shape[3]
        shown = {
            f"{quarter_size(count)} of {count} heads, most aware": self.most.mean(2),
            f"{quarter_size(count)} of {count} heads, least aware": self.least.mean(2),
            "all heads": self.gold.mean((2, 3)),
        }
        numbered = [position + 1 for position in self.positions]
        where = "position of the gold document"
        draw_curves(lines, numbered, shown, "attention to the gold document, mean over layers", where, "attention")
        score = self.score.mean((0, 1))
        draw_heat_map(scores, score, range(count), "position-awareness", "head", "share of tokens", lowest=None)
        return figure

    def table(self) -> Table:
        table = make_table("Position-awareness by layer", "layer", "lowest", "mean", "highest", "head with it")
        for layer, scores in enumerate(self.score.mean((0, 1))):
            low, high = float(scores.min()), float(scores.max())
            table.add_row(
                str(layer), f"{low:.3f}", f"{float(scores.mean()):.3f}", f"{high:.3f}", str(int(scores.argmax()))
            )
        return table


def quarter_size(heads: int) -> int:
    """Return the number of heads in a quarter, at least one."""
    return max(1, heads // PART)


class LastToken(DocumentAttention):
    """Record the attention weights of the prompt's last token: ``weights[b]`` is float32 ``[n_layers, H, T]``."""

    name = "last-token"
    needs_documents = False

    def weights_to_record(self, seq: SequenceCall, weights: Tensor) -> Tensor:
        return weights


@torch.no_grad()
def token_weights(lm: DebiasedLM, tokens: TokenisedPrompt) -> Tensor:
    """Measure the attention weights of the last token, float32 ``[n_layers, H, T]``."""
    reader = LastToken()
    with attached(Binding(lm.model, reader, [tokens.spans], private=True, backend=lm.backend)):
        lm.model(torch.tensor([tokens.ids], device=lm.model.device), use_cache=False, logits_to_keep=1)
    return reader.weights[0]


def measure(lm: DebiasedLM, samples: Sequence[Sample], alpha: float, track: Track) -> HeadAwareness:
    """Score the heads of the plain model on each prompt.

    Args:
        alpha: a weight counts if it exceeds ``alpha`` times the mean; 3 in the paper.
    """
    scores, golds, ends = [], [], []
    for sample in track(samples):
        weights = token_weights(lm, sample.prompt)
        begin, end = sample.prompt.spans[sample.gold]
        gold, score = weights[:, :, begin:end].sum(2), (weights > alpha / weights.shape[2]).float().mean(2)
        ranked = gold.gather(1, score.argsort(dim=1, descending=True, stable=True))
        part = quarter_size(score.shape[1])
        scores.append(score)
        golds.append(gold)
        ends.append(torch.stack([ranked[:, :part].mean(1), ranked[:, -part:].mean(1)]))
    positions, score = arrange_by_question(samples, scores)
    (_, gold), (_, end) = arrange_by_question(samples, golds), arrange_by_question(samples, ends)
    return HeadAwareness(positions, score, gold, end[:, :, 0], end[:, :, 1])


def main(arguments: Sequence[str] | None = None) -> None:
    run(
        parser(__doc__, method="ms-poe"),
        arguments,
        lambda lm, samples, track, parsed: measure(
            lm, samples, make_method(parsed.method, parsed.model, MsPoE).alpha, track
        ),
        "Position-awareness of heads\n{model}, {method}",
    )


if __name__ == "__main__":
    main()
