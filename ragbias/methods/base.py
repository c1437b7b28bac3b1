"""What a method is: a rule inside the attention layers, or a rule for the order of the documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from ragbias.checks import check_whole
from ragbias.errors import MethodError

if TYPE_CHECKING:
    from ragbias.methods.call import AttentionCall, SequenceCall

LayerRange = tuple[int, int | None]


class Method:
    """Common ground of all methods.

    Attributes:
        name: the string that users type.
        needs_documents: whether it must know where the documents stand.
        invariant: whether the answer does not depend on the documents' order at all.
        cost: what it costs beside the plain model, in words.
        source: the paper, or where the method comes from.
    """

    name: ClassVar[str]
    needs_documents: ClassVar[bool]
    invariant: ClassVar[bool] = False
    cost: ClassVar[str]
    source: ClassVar[str]


class AttentionMethod(Method):
    """A method that replaces the attention of some layers.

    If it is invariant, the binding runs the documents in a canonical order inside the model.

    Attributes:
        positions: ``"none"`` if queries and keys shall arrive without any position (and be cached so), ``"model"`` if
            the model's own rotation stays.
        needs_rotary: whether it makes sense for rotary positions only.
        selective: whether it is one of two answers to choose between, which ``DebiasedLM`` does.
        default_layers: the layers it acts in by default, in words.
        layers: first and last layer it acts in, both included, ``None`` as last for the end; ``None``: all layers.
    """

    positions: ClassVar[Literal["none", "model"]] = "none"
    needs_rotary: ClassVar[bool] = False
    default_layers: ClassVar[str] = "all"
    selective: bool = False
    layers: LayerRange | None = None

    def attention(self, call: AttentionCall) -> Tensor:
        """The layer's attention output, ``[batch, queries, heads, d]``."""
        return by_sequence(call, lambda row: self.attend_sequence(row, call.prefill)[0])

    def attend_sequence(self, row: SequenceCall, prefill: bool) -> tuple[Tensor, Tensor]:
        """Attention of one sequence: output ``[H, Q, d]`` and LSE float32 ``[H, Q]``."""
        raise NotImplementedError

    def query_input(self, hidden: Tensor, layer: int, prefill: bool) -> Tensor:
        """What the query projection reads instead of ``hidden`` ``[batch, queries, hidden_size]``."""
        return hidden

    def key_input(self, hidden: Tensor, layer: int) -> Tensor:
        """What the key projection reads instead of ``hidden`` ``[batch, queries, hidden_size]``."""
        return hidden

    def document_order(self, documents: Sequence[Sequence[int]]) -> list[int]:
        """For an invariant method, the order in which documents of these token ids run inside the model."""
        return canonical_order(documents)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        """Raise ``MethodError`` if the parameters do not fit a model of this size."""
        self.layer_indices(n_layers)

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        """The layers it acts in, for a model of ``n_layers``."""
        if self.layers is None:
            return range(n_layers)
        if not isinstance(self.layers, tuple) or len(self.layers) != 2:
            raise MethodError(f"{self.name}: layers={self.layers!r}; expected a tuple (first, last)")
        first, last = self.layers
        check_whole(f"{self.name}: first of layers={self.layers!r}:", first, 0)
        if last is not None:
            check_whole(f"{self.name}: last of layers={self.layers!r}:", last, 0)
        last = n_layers - 1 if last is None else last
        if not 0 <= first <= last < n_layers:
            raise MethodError(
                f"{self.name}: layers={self.layers} do not fit a model of {n_layers} layers; "
                f"expected 0 <= first <= last <= {n_layers - 1}, both included"
            )
        return range(first, last + 1)


def by_sequence(call: AttentionCall, rule: Callable[[SequenceCall], Tensor]) -> Tensor:
    """The outputs ``[H, Q, d]`` of a rule for each row, as ``[batch, Q, H, d]`` with zeros for padding."""
    output = torch.zeros_like(call.query).transpose(1, 2)
    for row in call.sequences():
        output[row.index, row.pad :] = rule(row).transpose(0, 1)
    return output


def canonical_order(documents: Sequence[Sequence[int]]) -> list[int]:
    """Indices that sort documents by token ids; equal documents keep their order."""
    return sorted(range(len(documents)), key=lambda index: tuple(documents[index]))


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
