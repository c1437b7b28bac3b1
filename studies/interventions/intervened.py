"""A method that adds interventions to another method or to the plain model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from ragbias.errors import MethodError
from ragbias.methods import AttentionCall, AttentionMethod, Method, get
from ragbias.methods.plain import NoMethod
from studies.interventions.base import Intervention
from studies.interventions.reweighting import Reweighting, attend_with_bias, reweight

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PlainAttention(AttentionMethod):
    """The plain model's attention, to which interventions are added. It acts in no layer."""

    name = "none"
    positions = "model"
    cost = "none"
    source = ""

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        return ()

    def attention(self, call: AttentionCall) -> Tensor:
        return call.plain(call.query, call.key)


@dataclass(frozen=True, init=False)
class Intervened(AttentionMethod):
    """Apply interventions to the plain model, or to a method that acts inside the model.

        with ragbias.debias(model, Intervened(HideKeys("question", 2), on=Pine()), spans=spans):
            model(ids)

    Interventions apply in this order: channels, positions, renormalised weights, other weights. Changes of weights act
    on the method's final weights, and do not affect importances that a method measures. Spans refer to the tokens of
    the user's prompt without padding, even if the model runs the documents in another order.

    Args:
        interventions: one or more.
        on: a method or its name; None: the plain model. Positions can be shifted only if the method uses the model's
            positions.
    """

    interventions: tuple[Intervention, ...]
    on: AttentionMethod

    cost = "for each change of weights, up to twice the method's cost in addition"
    source = "Yu et al., arXiv 2406.02536; Qiang et al., arXiv 2512.13109"

    def __init__(self, *interventions: Intervention, on: str | Method | None = None) -> None:
        for each in interventions:
            if not isinstance(each, Intervention):
                raise MethodError(f"Intervened: {each!r} is not an intervention; expected e.g. HideKeys('question', 2)")
        if not interventions:
            raise MethodError("Intervened: no intervention; pass at least one, or run the method alone")
        inner = _make_attention_method(NoMethod() if on is None else on)
        shifts = any(each.shifts for each in interventions)
        if shifts and inner.positions != "model":
            raise MethodError(
                f"shift on {inner.name}: both assign positions to the same keys, and a key can have only one; "
                "shift positions on a method that uses the model's positions"
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
        renormalised = [change for change in changes if change[0].renormalised]
        others = [change for change in changes if not change[0].renormalised]
        if acts:
            return reweight(self.on, call, renormalised + others)
        call = replace(call, plain=partial(attend_with_bias, call, renormalised))
        return reweight(PlainAttention(), call, others)

    def _changed(self, hidden: Tensor, layer: int, of: Literal["query", "key"]) -> Tensor:
        for each in self._acting_in(layer):
            hidden = each.changed(hidden, of)
        return hidden

    def _acting_in(self, layer: int) -> list[Intervention]:
        return [each for each in self.interventions if each.acts_in(layer)]

    def _positioned(self, call: AttentionCall) -> AttentionCall:
        """Return the call with shifted positions in queries and keys, for a method that uses the model's positions."""
        import torch

        from ragbias.attention import Encoding
        from ragbias.attention.keys import Alibi

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
        """Return the changes of weights in the call's layer, each with an entry per sequence."""
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


def _make_attention_method(name: str | Method) -> AttentionMethod:
    method = get(name)
    if method.is_plain:
        return PlainAttention()
    if not isinstance(method, AttentionMethod) or method.selective:
        raise MethodError(f"{method.name}: interventions act inside the model, on a single prompt; use another method")
    return method
