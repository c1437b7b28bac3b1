"""What every intervention declares of itself, and what it may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

from ragbias.errors import MethodError
from ragbias.interventions.reweighting import Reweighting
from ragbias.interventions.spans import GOLD, resolved
from ragbias.methods.base import LayerRange, in_layers, layers_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ragbias.methods.call import SequenceLayout

Self = TypeVar("Self", bound="Intervention")


class Intervention:
    """Base class of all interventions; each overrides what it changes.

    Attributes:
        name: the string that users type.
        shifts: whether it gives offsets to positions, see ``offsets``.
        span_fields: names of the fields that hold a ``Where``.
        layers: first and last layer it acts in, both included, ``None`` as last for the end; ``None``: all.
    """

    name: str
    shifts: bool = False
    span_fields: tuple[str, ...] = ()
    layers: LayerRange | None

    @property
    def needs_documents(self) -> bool:
        """Whether it must know which tokens are documents."""
        return any(not isinstance(getattr(self, name), tuple) for name in self.span_fields)

    @property
    def needs_gold(self) -> bool:
        """Whether it is for the document with the answer, so that it has to be ``resolved`` first."""
        return any(getattr(self, name) == GOLD for name in self.span_fields)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        """Raise ``MethodError`` if the parameters do not fit a model of this size."""
        self.layer_indices(n_layers)
        if self.needs_gold:
            raise MethodError(f"{self.name}: 'gold' is not known here; give the index of the document")

    def layer_indices(self, n_layers: int) -> range:
        """The layers it acts in, for a model of ``n_layers``."""
        return layers_of(self.name, self.layers, n_layers)

    def acts_in(self, layer: int) -> bool:
        return in_layers(self.layers, layer)

    def resolved(self: Self, gold: int | None, order: Sequence[int]) -> Self:
        """The same for a prompt whose documents were reordered; arguments and errors as of ``spans.resolved``."""
        found = {name: resolved(getattr(self, name), gold, order) for name in self.span_fields}
        return replace(self, **found) if found else self  # type: ignore[type-var]  # all are dataclasses

    def changed(self, hidden: Tensor, of: Literal["query", "key"]) -> Tensor:
        """What queries or keys are computed from instead of ``hidden`` ``[batch, T, hidden_size]``."""
        return hidden

    def offsets(self, layout: SequenceLayout, count: int, device: torch.device) -> Tensor | None:
        """What is added to the positions of the first ``count`` tokens, int64 ``[count]``; None: nothing."""
        return None

    def reweightings(self, layout: SequenceLayout, count: int, device: torch.device) -> list[Reweighting]:
        """The weights on the first ``count`` tokens that it multiplies, in the model's order of tokens.

        As many for each sequence of a batch.
        """
        return []
