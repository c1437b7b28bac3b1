"""Attention sorting.

Source: Peysakhovich and Lerer, Attention Sorting Combats Recency Bias in Long Context Language Models, arXiv
2310.01427.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias import attention
from ragbias.checks import Bounds, check_not_cancelled, check_whole_between
from ragbias.methods.base import AttentionMethod, DocumentScorer, ReorderingMethod

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.call import AttentionCall


@dataclass(frozen=True)
class AttentionSorting(ReorderingMethod):
    """Sort the documents by the attention that the prompt's last token pays them, highest last; repeat; then generate.

    Args:
        rounds: how often, 1 to 1,000; each round costs one prefill.
    """

    rounds: int = 1

    name = "attention-sorting"
    cost = "one more prefill for each round"
    source = "Peysakhovich and Lerer, arXiv 2310.01427"

    def __post_init__(self) -> None:
        check_whole_between("attention-sorting: rounds", self.rounds, Bounds(1, 1_000))

    def order(self, documents: Sequence[Sequence[int]], attention: DocumentScorer) -> list[int]:
        order = list(range(len(documents)))
        for _ in range(self.rounds):
            scores = attention(order)
            order.sort(key=scores.__getitem__)
        return order


class DocumentAttention(AttentionMethod):
    """Runs the model as it is and measures the attention of the prompt's last token to each document.

    By sequence of the batch, ``mass[b]`` ``[n_layers, n]`` is the attention to each document, averaged over heads, and
    ``scores[b][j]`` that to document ``j`` per token of the document, averaged over layers and heads.
    """

    name = "document-attention"
    needs_documents = True
    positions = "model"
    cost = "one row of scores"
    source = "Peysakhovich and Lerer, arXiv 2310.01427"

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self._cancelled = cancelled
        self._mass: dict[int, list[Tensor]] = {}
        self._lengths: dict[int, Tensor] = {}

    @property
    def mass(self) -> list[Tensor]:
        import torch

        return [torch.stack(by_layer) for _, by_layer in sorted(self._mass.items())]

    @property
    def scores(self) -> list[list[float]]:
        return [(mass.mean(0) / self._lengths[index]).tolist() for index, mass in enumerate(self.mass)]

    def attention(self, call: AttentionCall) -> Tensor:
        import torch

        check_not_cancelled(self._cancelled)
        for seq in call.sequences():
            count = seq.key.shape[1]
            scores = attention.segment_scores(
                seq.query[:, -1:],
                seq.key,
                positions=seq.arange(count - 1, count),
                scoring=seq.scoring,
            )
            weights = scores.softmax(-1).mean((0, 1))
            mass = torch.stack([weights[begin:end].sum() for begin, end in seq.spans])
            self._mass.setdefault(seq.index, []).append(mass.cpu())
            self._lengths[seq.index] = seq.lengths.cpu()
        return call.plain(call.query, call.key)
