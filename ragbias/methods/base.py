"""What a method is: a rule inside the attention layers, or a rule for the order of the documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from ragbias.errors import MethodError

if TYPE_CHECKING:
    from ragbias.binding.call import AttentionCall

LayerRange = tuple[int, int | None]


class Method:
    """Common ground of all methods.

    Attributes:
        name: the string that users type.
        needs_documents: whether it must know where the documents stand.
    """

    name: ClassVar[str]
    needs_documents: ClassVar[bool]


class AttentionMethod(Method):
    """A method that replaces the attention of some layers.

    Attributes:
        invariant: whether the answer must not depend on the documents' order at all; the binding then runs the
            documents in a canonical order inside the model.
        positions: ``"none"`` if queries and keys shall arrive without any position (and be cached so), ``"model"`` if
            the model's own rotation stays.
        layers: first and last layer it acts in, both included, ``None`` as last for the end; ``None``: all layers.
    """

    invariant: ClassVar[bool]
    positions: ClassVar[Literal["none", "model"]]
    layers: LayerRange | None

    def attention(self, call: AttentionCall) -> Tensor:
        """The layer's attention output, ``[batch, queries, heads, d]``."""
        raise NotImplementedError

    def query_input(self, hidden: Tensor, prefill: bool) -> Tensor:
        """What the query projection reads instead of ``hidden`` ``[batch, queries, hidden_size]``."""
        return hidden

    def key_input(self, hidden: Tensor) -> Tensor:
        """What the key projection reads instead of ``hidden`` ``[batch, queries, hidden_size]``."""
        return hidden

    def validate(self, hidden_size: int, n_layers: int) -> None:
        """Raise ``MethodError`` if the parameters do not fit a model of this size."""
        self.layer_indices(n_layers)

    def layer_indices(self, n_layers: int) -> range:
        """The layers it acts in, for a model of ``n_layers``."""
        try:
            first, last = self.layers or (0, None)
            hash(self.layers)
        except (TypeError, ValueError) as error:
            raise MethodError(f"{self.name}: layers={self.layers!r}; expected a tuple (first, last)") from error
        last = n_layers - 1 if last is None else last
        if not 0 <= first <= last < n_layers:
            raise MethodError(
                f"{self.name}: layers={self.layers} do not fit a model of {n_layers} layers; "
                f"expected 0 <= first <= last <= {n_layers - 1}, both included"
            )
        return range(first, last + 1)


DocumentScorer = Callable[[Sequence[int]], list[float]]


class ReorderingMethod(Method):
    """A method that changes the order of the documents and leaves the model alone."""

    needs_documents = True

    def order(self, documents: Sequence[Sequence[int]], attention: DocumentScorer) -> list[int]:
        """The new order.

        Args:
            documents: token ids of each document, in the retriever's order.
            attention: for an order, the attention that the prompt's last token pays to each document, per token of the
                document and averaged over layers and heads, indexed as ``documents``. Each call costs a prefill.

        Returns:
            indices into ``documents``.
        """
        raise NotImplementedError


def check_finite(name: str, value: float) -> None:
    """Raise ``MethodError`` unless ``value`` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise MethodError(f"{name}={value!r} is not a finite number")
