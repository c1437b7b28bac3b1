"""PINE, position-invariant inference, Wang et al., arXiv 2407.01100."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ragbias import attention
from ragbias.checks import check_choice, check_whole_between
from ragbias.errors import MethodError
from ragbias.methods.base import LAYER_INDEX, LayerRange, SequenceCall, Tensor, in_layers
from ragbias.methods.segments import SegmentMethod, input_starts, starts_after_prefix, starts_up_to

Order: TypeAlias = Literal["importance", "reverse", "canonical", "input"]


@dataclass(frozen=True)
class Pine(SegmentMethod):
    """Documents see each other in both directions. Important documents have positions close to the query.

    ``P`` tokens precede the documents, document ``j`` has length ``L_j``, and ``E = P + sum L_j``. In each head:

    - For tokens of document ``i``, the importance of another document ``j`` is ``sum_{t in i, s in j} a[t, s] / L_j``.
      Here, ``a = softmax(q k^T / sqrt(d))`` is the attention of these tokens to all other documents, without positions.
      Document ``i`` ends at position ``E - 1``. The most important other document precedes it, then the second most
      important, and so on. Document ``i`` sees itself causally, and the prefix and all others fully.
    - For a token after the documents, the importance is computed over all documents. The most important document ends
      at ``E - 1``. The token has its true position and sees all tokens before it.

    In layers before ``from_layer`` or after ``to_layer``, document ``i`` sees only the prefix and itself. It begins at
    its true position if ``order`` is ``"input"``, and at ``P`` otherwise. Before ``from_layer``, a document's keys and
    values do not depend on the other documents.

    Args:
        order: ``"importance"`` is the rule above. ``"reverse"`` and ``"input"`` are ablations in the paper.
            ``"reverse"`` puts the most important document farthest away. ``"input"`` does not move documents: only the
            mask differs from the plain model, and the method is not order-invariant. ``"canonical"`` is our addition:
            the other documents are sorted by token ids, without measuring importance.
        layers: first and last layer, both included; ``None`` for all. Other layers run the plain model's attention.
        from_layer, to_layer: first and last layer in which documents see each other, 0 to 9,999. ``None`` is the last
            layer of the model. The paper uses 0 and ``None``.
    """

    order: Order = "importance"
    layers: LayerRange | None = None
    from_layer: int = 0
    to_layer: int | None = None

    name = "pine"
    invariant = True
    cost = "one more score product and twice the causal scores in the prefill; a second score product in decoding"
    source = "Wang et al., arXiv 2407.01100"

    @property
    def follows_query(self) -> bool:
        return self.order in ("importance", "reverse")

    def __post_init__(self) -> None:
        fixed = "'canonical' sorts by token ids; 'input' moves no document and is not order-invariant"
        check_choice("pine: order", self.order, get_args(Order), fixed)
        check_whole_between("pine: from_layer", self.from_layer, LAYER_INDEX)
        if self.to_layer is not None:
            check_whole_between("pine: to_layer", self.to_layer, LAYER_INDEX)
        if self.order == "input":
            object.__setattr__(self, "invariant", False)  # of this instance; the class has the default

    def together_in(self, layer: int) -> bool:
        return in_layers((self.from_layer, self.to_layer), layer)

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        last = n_layers - 1 if self.to_layer is None else self.to_layer
        if not self.from_layer <= last < n_layers:
            raise MethodError(
                f"pine: from_layer={self.from_layer}, to_layer={self.to_layer} do not fit a model of {n_layers} "
                f"layers; expected from_layer <= to_layer <= {n_layers - 1}"
            )
        return super().layer_indices(n_layers)

    def document_starts(self, seq: SequenceCall) -> Tensor:
        if self.order == "input":
            return input_starts(seq)
        if not self.together_in(seq.layer):
            return starts_after_prefix(seq)
        document = seq.arange(len(seq.spans))
        others = document[:, None] != document
        nearness = self._nearness(seq, seq.query, attention.primitive.document_mass)
        return self._starts_by_nearness(nearness.where(others, math.inf), seq)  # a document is nearest to itself

    def tail_starts(self, seq: SequenceCall, query: Tensor) -> Tensor:
        if self.order == "input":
            return super().tail_starts(seq, query)
        return self._starts_by_nearness(self._nearness(seq, query, attention.primitive.segment_mass), seq)

    def _nearness(self, seq: SequenceCall, query: Tensor, measure: Callable[..., Tensor]) -> Tensor:
        """Return the nearness of the documents ``[H or 1, Q or 1, n]``. ``measure`` returns the attention to each."""
        if self.order == "canonical":  # the last document is nearest
            return seq.arange(len(seq.spans)).float()[None, None]
        importance = measure(query, seq.key, seq.spans, seq.scoring) / seq.lengths
        return importance if self.order == "importance" else -importance

    def _starts_by_nearness(self, nearness: Tensor, seq: SequenceCall) -> Tensor:
        """Sort the documents stably by ``nearness``, nearest last. Return their starts ``[H or 1, Q or 1, n]``."""
        nearest_first = nearness.argsort(dim=-1, descending=True, stable=True)
        return starts_up_to(seq.documents_end, seq.lengths, nearest_first)
