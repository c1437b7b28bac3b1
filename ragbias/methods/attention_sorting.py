"""Attention sorting.

Source: Peysakhovich and Lerer, Attention Sorting Combats Recency Bias in Long Context Language Models, arXiv
2310.01427.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ragbias.attention import segment_mass
from ragbias.errors import MethodError
from ragbias.methods.base import AttentionMethod, DocumentScorer, ReorderingMethod

if TYPE_CHECKING:
    from ragbias.binding.call import AttentionCall


@dataclass(frozen=True)
class AttentionSorting(ReorderingMethod):
    """Sort the documents by the attention that the prompt's last token pays them, highest last; repeat; then generate.

    Args:
        rounds: how often; each round costs one prefill.
    """

    rounds: int = 1

    name = "attention-sorting"

    def __post_init__(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise MethodError(f"attention-sorting: rounds={self.rounds!r}; expected a whole number >= 1")

    def order(self, documents: Sequence[Sequence[int]], attention: DocumentScorer) -> list[int]:
        order = list(range(len(documents)))
        for _ in range(self.rounds):
            scores = attention(order)
            order.sort(key=scores.__getitem__)
        return order


class DocumentAttention(AttentionMethod):
    """Runs the model as it is and adds up the attention of the prompt's last token to each document.

    ``scores[row][j]`` is the attention to document ``j`` per token of the document, averaged over layers and heads.
    """

    name = "document-attention"
    needs_documents = True
    invariant = False
    positions = "model"
    layers = None

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}
        self._layers = 0

    @property
    def scores(self) -> list[list[float]]:
        return [(total / self._layers).tolist() for _, total in sorted(self._sums.items())]

    def attention(self, call: AttentionCall) -> Tensor:
        self._layers += 1
        for row in call.rows():
            segments = [row.prefix, *row.lengths, row.key.shape[1] - row.documents_end]
            mass = segment_mass(row.query[:, -1:], row.key, segments, row.scale)[:, 0, 1:-1].mean(0)
            per_token = mass.cpu() / torch.tensor(row.lengths)
            self._sums[row.index] = self._sums.get(row.index, 0) + per_token
        return call.plain(call.query, call.key)
