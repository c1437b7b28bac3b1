"""Attention sorting.

Source: Peysakhovich and Lerer, Attention Sorting Combats Recency Bias in Long Context Language Models, arXiv
2310.01427.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ragbias import attention
from ragbias.checks import Bounds, check_choice, check_not_cancelled, check_whole_between
from ragbias.methods.base import AttentionMethod, DocumentScorer, Ranking, ReorderingMethod

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.call import AttentionCall


@dataclass(frozen=True)
class AttentionSorting(ReorderingMethod):
    """Sort the documents by the attention that the prompt's last token pays them, highest last; repeat; then generate.

    Rounds need not settle: a later one may return to an earlier order.

    Args:
        rounds: how often, 1 to 1,000; each round costs one prefill.
        score: of a document, the ``"sum"`` of the attention to its tokens, as in the authors' code, so that long
            documents gain; or the ``"mean"``, per token.
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
        """As of ``ReorderingMethod``; the scores are those of the last round."""
        order, scores = list(range(len(documents))), [0.0]
        for _ in range(self.rounds):
            scores = scorer(order)
            if self.score == "mean":
                scores = [score / len(document) for score, document in zip(scores, documents, strict=True)]
            order.sort(key=scores.__getitem__)
        return Ranking(tuple(order), tuple(scores))


class DocumentAttention(AttentionMethod):
    """Runs the model as it is and measures the attention of the prompt's last token to each document.

    By sequence of the batch, ``mass[b]`` ``[n_layers, n]`` is the attention to each document, averaged over heads.
    """

    name = "document-attention"
    needs_documents = True
    positions = "model"
    cost = "the scores of one query"
    source = "Peysakhovich and Lerer, arXiv 2310.01427"

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self._cancelled = cancelled
        self._mass: dict[int, list[Tensor]] = {}

    @property
    def mass(self) -> list[Tensor]:
        import torch

        return [torch.stack(by_layer) for _, by_layer in sorted(self._mass.items())]

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
        return call.plain(call.query, call.key)
