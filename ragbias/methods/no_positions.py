"""Attention without positional encoding (NoPE): only the causal mask depends on positions.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536,
which runs a model without position embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.methods.base import AttentionMethod, LayerRange
from ragbias.methods.call import AttentionCall

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NoPositions(AttentionMethod):
    """Queries and keys are not rotated. For experiments: models that were not trained this way answer badly.

    Args:
        layers: first and last layer, both included; ``None``: all.
    """

    layers: LayerRange | None = None

    name = "nope"
    needs_rotary = True
    same_prefill_cost = True
    cost = "none"
    source = "Yu et al., arXiv 2406.02536"

    def attention(self, call: AttentionCall) -> Tensor:
        return call.plain(call.query, call.key)
