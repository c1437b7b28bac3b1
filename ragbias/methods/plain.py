"""The model's own attention, for methods that act on top of another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.methods.base import AttentionMethod

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.call import AttentionCall


@dataclass(frozen=True)
class PlainAttention(AttentionMethod):
    """The model as it is, as a method inside of its layers; of its own it acts in none."""

    name = "none"
    positions = "model"
    cost = "none"
    source = ""

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        return ()

    def attention(self, call: AttentionCall) -> Tensor:
        return call.plain(call.query, call.key)
