"""Documents in an order that depends on their content only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragbias.methods.base import DocumentScorer, ReorderingMethod, canonical_order


@dataclass(frozen=True)
class CanonicalOrder(ReorderingMethod):
    """Sort the documents by their token ids: perfect consistency, and no bias removed at all."""

    name = "canonical-order"
    invariant = True
    cost = "none"
    source = "sorting, as a baseline"

    def order(self, documents: Sequence[Sequence[int]], attention: DocumentScorer) -> list[int]:
        return canonical_order(documents)
