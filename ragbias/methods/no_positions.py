"""Attention without positional encoding, NoPE: what the causal mask alone tells of positions.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536, in
whose experiment a model has no position embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.methods.base import AttentionMethod, LayerRange

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.arithmetic import ModelShape, PromptLengths
    from ragbias.methods.call import AttentionCall


@dataclass(frozen=True)
class NoPositions(AttentionMethod):
    """Queries and keys are not rotated. For experiments: a model that was not trained so answers badly.

    Args:
        layers: first and last layer, both included; ``None``: all.
    """

    layers: LayerRange | None = None

    name = "nope"
    needs_rotary = True
    cost = "none"
    source = "Yu et al., arXiv 2406.02536"

    def added_multiply_adds(self, shape: ModelShape, lengths: PromptLengths) -> int:
        return 0

    def attention(self, call: AttentionCall) -> Tensor:
        return call.plain(call.query, call.key)
