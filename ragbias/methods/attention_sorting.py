"""Attention sorting.

Source: Peysakhovich and Lerer, Attention Sorting Combats Recency Bias in Long Context Language Models, arXiv
2310.01427.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ragbias.checks import Bounds, check_choice, check_whole_between
from ragbias.methods.base import DocumentScorer, Ranking, ReorderingMethod


@dataclass(frozen=True)
class AttentionSorting(ReorderingMethod):
    """Sort the documents by the attention of the prompt's last token, highest last, several times; then generate.

    The order need not converge: a later round may return to an earlier order.

    Args:
        rounds: 1 to 1,000; each costs one prefill.
        score: the ``"sum"`` of the attention to a document's tokens, as in the authors' code, which favours long
            documents; or the ``"mean"``.
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
        """See ``ReorderingMethod``; the scores are those of the last round."""
        order, scores = list(range(len(documents))), [0.0]
        for _ in range(self.rounds):
            scores = scorer(order)
            if self.score == "mean":
                scores = [score / len(document) for score, document in zip(scores, documents, strict=True)]
            order.sort(key=scores.__getitem__)
        return Ranking(tuple(order), tuple(scores))
