"""Two methods in one model, where the papers define it.

Source: Qiang et al., arXiv 2512.13109, who combine SIW with channel scaling and with Self-Extend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from ragbias.errors import MethodError
from ragbias.methods.base import AttentionMethod, Method, by_sequence
from ragbias.methods.channel_scaling import ChannelScaling
from ragbias.methods.self_extend import SelfExtend
from ragbias.methods.siw import SIW

if TYPE_CHECKING:
    from ragbias.methods.call import AttentionCall


@dataclass(frozen=True, init=False)
class Compose(AttentionMethod):
    """SIW on top of channel scaling, or on top of Self-Extend.

    Each acts in its own layers. Where both act, SIW changes the weights that the other method gives. With channel
    scaling these are the plain ones, before the last rows are replaced.

    Args:
        methods: ``SIW`` and ``ChannelScaling``, or ``SIW`` and ``SelfExtend``, in any order.
    """

    siw: SIW
    other: ChannelScaling | SelfExtend

    needs_documents = True
    cost = "the sum of both"
    source = "Qiang et al., arXiv 2512.13109"

    def __init__(self, *methods: AttentionMethod) -> None:
        siw = [method for method in methods if isinstance(method, SIW)]
        others = [method for method in methods if isinstance(method, (ChannelScaling, SelfExtend))]
        if len(methods) != 2 or len(siw) != 1 or len(others) != 1:
            raise MethodError(f"Compose({', '.join(map(_name, methods))}): {_reason(methods)}")
        object.__setattr__(self, "siw", siw[0])
        object.__setattr__(self, "other", others[0])

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.siw.name}+{self.other.name}"

    @property
    def positions(self) -> Literal["none", "model"]:  # type: ignore[override]
        return self.other.positions

    @property
    def needs_rotary(self) -> bool:  # type: ignore[override]
        return self.other.needs_rotary

    def validate(self, hidden_size: int, n_layers: int) -> None:
        self.siw.validate(hidden_size, n_layers)
        self.other.validate(hidden_size, n_layers)

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        return sorted({*self.siw.layer_indices(n_layers), *self.other.layer_indices(n_layers)})

    def query_input(self, hidden: Tensor, layer: int, prefill: bool) -> Tensor:
        return self.other.query_input(hidden, layer, prefill)

    def key_input(self, hidden: Tensor, layer: int) -> Tensor:
        return self.other.key_input(hidden, layer)

    def attention(self, call: AttentionCall) -> Tensor:
        reweigh = call.prefill and call.layer in self.siw.layer_indices(call.n_layers)
        if not reweigh:
            return self.other.attention(call)
        if isinstance(self.other, ChannelScaling):
            return self.other.attention(replace(call, plain=lambda query, key: self.siw.reweighted(call, query, key)))
        other = self.other
        return by_sequence(
            call, lambda row: self.siw.corrected(row, *other.attend_sequence(row, prefill=True), other.scores)
        )


def _name(method: object) -> str:
    return method.name if isinstance(method, Method) else repr(method)


def _reason(methods: Sequence[object]) -> str:
    """Why these methods do not go together."""
    if any(not isinstance(method, AttentionMethod) for method in methods):
        return "only methods inside the model can be composed; the order of documents is settled before the model runs"
    if sum(method.positions == "none" for method in methods if isinstance(method, AttentionMethod)) > 1:
        return "both give positions to the same keys, and a key can have only one"
    if len({type(method) for method in methods}) < len(methods):
        return "a method cannot be composed with itself"
    return "defined are SIW with ChannelScaling, and SIW with SelfExtend; no paper says what others would mean together"
