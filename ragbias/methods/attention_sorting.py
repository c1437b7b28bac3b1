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
