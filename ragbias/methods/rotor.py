"""RoToR, in which documents have a circular order, Yoon et al., arXiv 2502.08662."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ragbias.errors import MethodError
from ragbias.methods.base import SequenceCall, Tensor, canonical_order
from ragbias.methods.segments import SegmentMethod, starts_up_to


@dataclass(frozen=True)
class RoToR(SegmentMethod):
    """PINE with a fixed circular order of the documents instead of an order by importance.

    The documents ``1..n`` are in a canonical order. For queries in document ``i``, that document has the last positions
    before ``E``, the end of the documents. Document ``i + 1`` precedes it, then ``i + 2``, and so on around the circle.
    For tokens after the documents, document 1 has the last positions, document 2 precedes it, and so on.

    Args:
        key: function that returns the sort key of a document's token ids. Ties are broken by token ids. None sorts by
            token ids, or by embeddings if the model's input is embeddings.
        selective: whether to choose between RoToR and the plain model. RoToR answers if its first token is more
            probable than the plain model's. Otherwise the plain model answers. With this option, answers are not
            order-invariant. It needs ``DebiasedLM`` and two more prefills.
    """

    key: Callable[[Sequence[int]], Any] | None = None
    selective: bool = False

    name = "rotor"
    invariant = True
    sees_others = True
    cost = "twice the causal scores in the prefill; a few rotations in decoding"
    source = "Yoon et al., arXiv 2502.08662"

    def __post_init__(self) -> None:
        if self.key is not None and not callable(self.key):
            raise MethodError(f"rotor: key={self.key!r}; expected a function of a document's token ids, or None")
        if not isinstance(self.selective, bool):
            raise MethodError(f"rotor: selective={self.selective!r}; expected True or False")
        if self.selective:
            object.__setattr__(self, "invariant", False)  # of this instance; the class has the default

    def document_order(self, documents: Sequence[Sequence[int]]) -> list[int]:
        order = canonical_order(documents)
        key = self.key
        if key is None:
            return order
        if any(isinstance(token, bytes) for document in documents for token in document[:1]):
            raise MethodError("rotor: key sorts documents by token ids, but the model got embeddings; pass input_ids")
        return sorted(order, key=lambda index: key(documents[index]))

    def document_starts(self, seq: SequenceCall) -> Tensor:
        order = seq.arange(len(seq.spans))
        circles = (order[:, None] + order) % len(order)  # i, i + 1, ..., n - 1, 0, ..., i - 1
        return starts_up_to(seq.documents_end, seq.lengths, circles)[None]
