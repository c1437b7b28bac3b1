"""A minimal method in a separate distribution: the retriever's documents, last one first."""

from collections.abc import Sequence
from dataclasses import dataclass

from ragbias.methods import DocumentScorer, Ranking, ReorderingMethod


@dataclass(frozen=True)
class ReverseOrder(ReorderingMethod):
    """Turn the documents around, all but the first ``keep``.

    Args:
        keep: number of documents at the front that stay there.
    """

    keep: int = 0

    name = "reverse-order"
    cost = "none"
    source = "an example"

    def rank(self, documents: Sequence[Sequence[int]], scorer: DocumentScorer) -> Ranking:
        indices = range(len(documents))
        return Ranking((*indices[: self.keep], *indices[self.keep :][::-1]))
