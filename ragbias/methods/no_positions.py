"""Attention without positional encoding (NoPE), an experiment in Yu et al., arXiv 2406.02536."""

from __future__ import annotations

from dataclasses import dataclass

from ragbias.methods.base import AttentionCall, AttentionMethod, LayerRange, Tensor


@dataclass(frozen=True)
class NoPositions(AttentionMethod):
    """Attention without rotation of queries and keys. Only the causal mask depends on positions.

    Use this only in experiments: models that were trained with positional encoding answer badly.

    Args:
        layers: first and last layer, both included; ``None`` for all layers.
    """

    layers: LayerRange | None = None

    name = "nope"
    needs_rotary = True
    cost = "none"
    source = "Yu et al., arXiv 2406.02536"

    def attention(self, call: AttentionCall) -> Tensor:
        return call.plain(call.query, call.key)
