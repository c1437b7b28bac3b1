"""A method with interventions on top, to be run like any other method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from ragbias.errors import MethodError
from ragbias.interventions.base import Intervention
from ragbias.interventions.reweighting import Reweighting, biased, reweighted
from ragbias.methods.base import AttentionMethod, Method
from ragbias.methods.none import NoMethod
from ragbias.methods.parse import get
from ragbias.methods.plain import PlainAttention

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.call import AttentionCall


@dataclass(frozen=True, init=False)
class Intervened(AttentionMethod):
    """Interventions on the plain model, or on a method that acts inside the model.

        with ragbias.debias(model, Intervened(HideKeys("question", 2), on=Pine()), spans=spans):
            model(ids)

    Channels are changed first, then positions, then weights, those that are renormalised before the others. What
    changes weights acts on those that the method gives: an importance or a share of attention that a method measures
    on its way stays what it was. Spans count the prompt's tokens as it was given, without padding; where the model
    runs the documents in another order, they are found there.

    Args:
        interventions: one or more.
        on: the method, by name or an instance; None: the plain model. Positions can be shifted only where it leaves
            them to the model.
    """

    interventions: tuple[Intervention, ...]
    on: AttentionMethod

    cost = "that of its method again, up to twice for each change of weights"
    source = "Yu et al., arXiv 2406.02536; Qiang et al., arXiv 2512.13109"

    def __init__(self, *interventions: Intervention, on: str | Method | None = None) -> None:
        for each in interventions:
            if not isinstance(each, Intervention):
                raise MethodError(f"Intervened: {each!r} is no intervention; expected e.g. HideKeys('question', 2)")
        if not interventions:
            raise MethodError("Intervened: no intervention; give at least one, or run the method alone")
        inner = _attention_method(NoMethod() if on is None else on)
        shifts = any(each.shifts for each in interventions)
        if shifts and inner.positions != "model":
            raise MethodError(
                f"shift on {inner.name}: both give positions to the same keys, and a key can have only one; "
                "shift positions on a method that leaves them to the model"
            )
        own = dict(
            interventions=interventions,
            on=inner,
            name="+".join([inner.name, *(each.name for each in interventions)]),
            positions="none" if shifts else inner.positions,
            needs_rotary=shifts or inner.needs_rotary,
            needs_documents=inner.needs_documents or any(each.needs_documents for each in interventions),
            fewest_documents=inner.fewest_documents if inner.needs_documents else 1,
            invariant=inner.invariant,
        )
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        self.on.validate(hidden_size, n_layers)
        for each in self.interventions:
            each.validate(hidden_size, n_layers)

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        changed = {layer for each in self.interventions for layer in each.layer_indices(n_layers)}
        return sorted(changed | set(self.on.layer_indices(n_layers)))

    def document_order(self, documents: Sequence[Sequence[int]]) -> list[int]:
        return self.on.document_order(documents)

    def query_input(self, hidden: Tensor, layer: int, prefill: bool) -> Tensor:
        return self._changed(self.on.query_input(hidden, layer, prefill), layer, "query")

    def key_input(self, hidden: Tensor, layer: int) -> Tensor:
        return self._changed(self.on.key_input(hidden, layer), layer, "key")

    def attention(self, call: AttentionCall) -> Tensor:
        project = call.project
        call = replace(call, project=lambda of, hidden: project(of, self._changed(hidden, call.layer, of)))
        acts = call.layer in self.on.layer_indices(call.n_layers)
        if self.positions == "none" and not (acts and self.on.positions == "none"):
            call = self._positioned(call)
        changes = self._reweightings(call)
        kept = [change for change in changes if change[0].renormalised]
        others = [change for change in changes if not change[0].renormalised]
        if acts:
            return reweighted(self.on, call, kept + others)
        call = replace(call, plain=partial(biased, call, kept))
        return reweighted(PlainAttention(), call, others)

    def _changed(self, hidden: Tensor, layer: int, of: Literal["query", "key"]) -> Tensor:
        for each in self._acting_in(layer):
            hidden = each.changed(hidden, of)
        return hidden

    def _acting_in(self, layer: int) -> list[Intervention]:
        return [each for each in self.interventions if each.acts_in(layer)]

    def _positioned(self, call: AttentionCall) -> AttentionCall:
        """The call as of a method that leaves positions to the model: queries and keys carry theirs, shifted or not."""
        import torch

        from ragbias.attention import Alibi, Encoding

        columns, device = call.key.shape[2], call.key.device
        positions = torch.zeros(len(call.layouts), columns, dtype=torch.long, device=device)
        for index, layout in enumerate(call.layouts):
            count = columns - layout.pad
            positions[index, layout.pad :] = torch.arange(count, device=device)
            for each in self._acting_in(call.layer):
                offsets = each.offsets(layout, count, device)
                if offsets is not None:
                    positions[index, layout.pad :] += offsets

        def rotate(x: Tensor) -> Tensor:
            last = positions[:, columns - x.shape[2] :]
            parts = zip(call.scorings, x, last, strict=True)
            return torch.stack([scoring.encoding(part, at) for scoring, part, at in parts])

        return replace(
            call,
            query=rotate(call.query),
            key=rotate(call.key),
            rotate=rotate,
            scorings=[
                scoring if isinstance(scoring.encoding, Alibi) else replace(scoring, encoding=Encoding())
                for scoring in call.scorings
            ],
        )

    def _reweightings(self, call: AttentionCall) -> list[list[Reweighting]]:
        """The changes of weights in this layer, each for every sequence of the batch."""
        columns, device = call.key.shape[2], call.key.device
        by_sequence = [
            [
                change
                for each in self._acting_in(call.layer)
                for change in each.reweightings(layout, columns - layout.pad, device)
            ]
            for layout in call.layouts
        ]
        return [list(change) for change in zip(*by_sequence, strict=True)]


def _attention_method(given: str | Method) -> AttentionMethod:
    method = get(given)
    if method.acts_on == "nothing":
        return PlainAttention()
    if not isinstance(method, AttentionMethod) or method.selective:
        raise MethodError(f"{method.name}: interventions act inside the model, on one run of a prompt; leave it out")
    return method
