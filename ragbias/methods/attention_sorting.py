"""Attention sorting, Peysakhovich and Lerer, arXiv 2310.01427."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ragbias import attention
from ragbias.checks import Bounds, check_choice, check_not_cancelled, check_whole_between
from ragbias.methods.base import (
    AttentionCall,
    AttentionMethod,
    DocumentScorer,
    Ranking,
    ReorderingMethod,
    SequenceCall,
    Tensor,
)


@dataclass(frozen=True)
class AttentionSorting(ReorderingMethod):
    """Sort the documents by the attention that they get from the prompt's last token, lowest first.

    Each further round sorts the reordered documents. A round may return to an earlier order.

    Args:
        rounds: number of sorts, 1 to 1,000; each costs one prefill.
        score: ``"sum"`` or ``"mean"`` of the attention to a document's tokens. The authors' code uses the sum, which
            favours long documents.
    """

    rounds: int = 1
    score: Literal["sum", "mean"] = "sum"

    name = "attention-sorting"
    cost = "one more prefill for each round"
    source = "Peysakhovich and Lerer, arXiv 2310.01427"

    def __post_init__(self) -> None:
        check_whole_between("attention-sorting: rounds", self.rounds, Bounds(1, 1_000))
        check_choice("attention-sorting: score", self.score, ("sum", "mean"))

    def rank(self, documents: Sequence[Sequence[int]], scorer: DocumentScorer) -> Ranking:
        """Sort the documents. The scores in the ranking are those of the last round."""
        order = list(range(len(documents)))
        scores = [0.0]
        for _ in range(self.rounds):
            scores = scorer(order)
            if self.score == "mean":
                scores = [score / len(document) for score, document in zip(scores, documents, strict=True)]
            order.sort(key=scores.__getitem__)
        return Ranking(tuple(order), tuple(scores))


class DocumentAttention(AttentionMethod):
    """The plain model. It also records the attention of the prompt's last token to each document.

    ``weights[b]`` is the attention in sequence ``b``, averaged over heads: float32 ``[n_layers, n]``.
    """

    name = "document-attention"
    positions = "model"
    needs_documents = True

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self._cancelled = cancelled
        self._weights: dict[int, list[Tensor]] = {}

    @property
    def weights(self) -> list[Tensor]:
        import torch

        return [torch.stack(by_layer) for _, by_layer in sorted(self._weights.items())]

    def attention(self, call: AttentionCall) -> Tensor:
        check_not_cancelled(self._cancelled)
        for seq in call.sequences():
            last = seq.arange(seq.key.shape[1])[-1:]
            scores = attention.segment_scores(seq.query[:, -1:], seq.key, positions=last, scoring=seq.scoring)
            weights = self.weights_to_record(seq, scores.softmax(-1)[:, 0])
            self._weights.setdefault(seq.index, []).append(weights.cpu())
        return call.plain(call.query, call.key)

    def weights_to_record(self, seq: SequenceCall, weights: Tensor) -> Tensor:
        """Return the attention to each document ``[n]`` from the attention weights ``[H, T]`` of one layer."""
        import torch

        mean = weights.mean(0)
        return torch.stack([mean[begin:end].sum() for begin, end in seq.spans])
