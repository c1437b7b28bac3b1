"""Sorting of the documents by their content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragbias.methods.base import DocumentScorer, Ranking, ReorderingMethod, canonical_order


@dataclass(frozen=True)
class CanonicalOrder(ReorderingMethod):
    """Sort the documents by their token ids. Answers are order-invariant, but the model keeps its position bias."""

    name = "canonical-order"
    invariant = True
    cost = "none"
    source = "sorting, as a baseline"

    def rank(self, documents: Sequence[Sequence[int]], scorer: DocumentScorer) -> Ranking:
        return Ranking(tuple(canonical_order(documents)))
