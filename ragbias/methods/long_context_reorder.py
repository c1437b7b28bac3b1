"""Reordering as in LangChain's ``LongContextReorder`` and Haystack's ``LostInTheMiddleRanker``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ragbias.checks import check_choice
from ragbias.methods.base import DocumentScorer, Ranking, ReorderingMethod


@dataclass(frozen=True)
class LongContextReorder(ReorderingMethod):
    """Move the best documents to both ends of the context. The retriever must list the best document first.

    Args:
        style: ``"langchain"`` puts the best document last if the number of documents is even, and first if it is odd.
            ``"haystack"`` always puts the best document first and the second best last.
    """

    style: Literal["langchain", "haystack"] = "langchain"

    name = "long-context-reorder"
    cost = "none"
    source = "LangChain, Haystack"

    def __post_init__(self) -> None:
        check_choice("long-context-reorder: style", self.style, ("langchain", "haystack"))

    def rank(self, documents: Sequence[Sequence[int]], scorer: DocumentScorer) -> Ranking:
        count = len(documents)
        best_last = self.style == "langchain" and count % 2 == 0
        front, back = range(0, count, 2), range(1, count, 2)
        if best_last:
            front, back = back, front
        return Ranking((*front, *back[::-1]))
