"""Combinations of two methods: SIW with channel scaling or Self-Extend, Qiang et al., arXiv 2512.13109."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragbias.errors import MethodError
from ragbias.methods.base import AttentionCall, AttentionMethod, Method, Tensor
from ragbias.methods.siw import SIW


class Reweightable(AttentionMethod):
    """Base class of the methods that ``Compose`` combines with SIW."""

    def reweighted(self, call: AttentionCall, by: SIW) -> Tensor:
        """Compute a prompt's attention with weights changed by SIW: ``[batch, queries, heads, d]``."""
        raise NotImplementedError


@dataclass(frozen=True, init=False)
class Compose(AttentionMethod):
    """SIW combined with channel scaling or with Self-Extend.

    In layers where both act, SIW changes the attention weights that Self-Extend computes. With channel scaling, SIW
    first changes the weights of plain attention. Then channel scaling recomputes the outputs of the last tokens.

    Args:
        methods: ``SIW`` and ``ChannelScaling``, or ``SIW`` and ``SelfExtend``, in any order.
    """

    siw: SIW
    other: Reweightable

    needs_documents = True
    cost = "the sum of both"
    source = "Qiang et al., arXiv 2512.13109"

    def __init__(self, *methods: Method) -> None:
        siw = [method for method in methods if isinstance(method, SIW)]
        others = [method for method in methods if isinstance(method, Reweightable)]
        if len(methods) != 2 or len(siw) != 1 or len(others) != 1:
            names = ", ".join(method.name if isinstance(method, Method) else repr(method) for method in methods)
            raise MethodError(f"Compose({names}): {_reason(methods)}")
        other = others[0]
        attributes = {
            "siw": siw[0],
            "other": other,
            "name": f"{siw[0].name}+{other.name}",
            "positions": other.positions,
            "needs_rotary": other.needs_rotary,
        }
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

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
        return self.other.reweighted(call, self.siw) if reweigh else self.other.attention(call)


def _reason(methods: Sequence[object]) -> str:
    if any(not isinstance(method, AttentionMethod) for method in methods):
        return "only methods inside the model can be composed; documents are reordered before the model runs"
    if sum(method.positions == "none" for method in methods if isinstance(method, AttentionMethod)) > 1:
        return "both assign positions to the same keys, and a key can have only one position"
    if len({type(method) for method in methods}) < len(methods):
        return "a method cannot be composed with itself"
    return "expected SIW with ChannelScaling, or SIW with SelfExtend; no paper defines other compositions"
