"""Base class of interventions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

from ragbias.errors import MethodError
from ragbias.methods import SequenceLayout
from ragbias.methods.base import LayerRange, in_layers, layers_of
from studies.interventions.reweighting import Reweighting
from studies.interventions.spans import GOLD, resolve_span

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Self = TypeVar("Self", bound="Intervention")


class Intervention:
    """Base class of all interventions. A subclass overrides the methods that it needs.

    Attributes:
        name: the name that users type.
        shifts: whether the intervention shifts positions, see ``offsets``.
        span_fields: names of the fields that hold a ``Where``.
        layers: first and last layer, both included. ``(first, None)`` ends at the model's last layer; None: all layers.
    """

    name: str
    shifts: bool = False
    span_fields: tuple[str, ...] = ()
    layers: LayerRange | None

    @property
    def needs_documents(self) -> bool:
        """Whether the intervention needs the documents' spans."""
        return any(not isinstance(getattr(self, name), tuple) for name in self.span_fields)

    @property
    def needs_gold(self) -> bool:
        """Whether a span is ``"gold"``, which ``resolved`` must replace first."""
        return any(getattr(self, name) == GOLD for name in self.span_fields)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        """Raise ``MethodError`` if the parameters do not fit a model of this size."""
        self.layer_indices(n_layers)
        if self.needs_gold:
            raise MethodError(f"{self.name}: 'gold' is unknown here; pass the index of the document")

    def layer_indices(self, n_layers: int) -> range:
        """Return the layers in which the intervention acts, in a model with ``n_layers`` layers."""
        return layers_of(self.name, self.layers, n_layers)

    def acts_in(self, layer: int) -> bool:
        return in_layers(self.layers, layer)

    def resolved(self: Self, gold: int | None, order: Sequence[int]) -> Self:
        """Adapt the intervention to a prompt with reordered documents. See ``spans.document_index`` for arguments."""
        found = {name: resolve_span(getattr(self, name), gold, order) for name in self.span_fields}
        return replace(self, **found) if found else self  # type: ignore[type-var]  # all are dataclasses

    def changed(self, hidden: Tensor, of: Literal["query", "key"]) -> Tensor:
        """Return the input of the query or key projection that replaces ``hidden`` ``[batch, T, hidden_size]``."""
        return hidden

    def offsets(self, layout: SequenceLayout, count: int, device: torch.device) -> Tensor | None:
        """Return offsets for the positions of the first ``count`` tokens, int64 ``[count]``, or None."""
        return None

    def reweightings(self, layout: SequenceLayout, count: int, device: torch.device) -> list[Reweighting]:
        """Return changes of attention weights on the first ``count`` tokens, the same number for each sequence."""
        return []
