"""Documents in an order that depends on their content only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragbias.methods.base import DocumentScorer, ReorderingMethod


@dataclass(frozen=True)
class CanonicalOrder(ReorderingMethod):
    """Sort the documents by their token ids: perfect consistency, and no bias removed at all."""

    name = "canonical-order"

    def order(self, documents: Sequence[Sequence[int]], attention: DocumentScorer) -> list[int]:
        return canonical_order(documents)


def canonical_order(documents: Sequence[Sequence[int]]) -> list[int]:
    """Indices that sort documents by token ids; equal documents keep their order."""
    return sorted(range(len(documents)), key=lambda index: tuple(documents[index]))
