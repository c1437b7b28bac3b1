"""Position interpolation.

Source: Chen et al., Extending Context Window of Large Language Models via Positional Interpolation, arXiv 2306.15595.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.checks import Bounds, check_between
from ragbias.methods.base import AttentionMethod
from ragbias.methods.rescaled import rescaled

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.arithmetic import ModelShape, PromptLengths
    from ragbias.methods.call import AttentionCall


@dataclass(frozen=True)
class PositionInterpolation(AttentionMethod):
    """Position ``t`` becomes ``t / ratio``, in all layers and heads.

    Args:
        ratio: 0.001 to 1,000,000; 1 changes nothing.
    """

    ratio: float = 1.5

    name = "position-interpolation"
    needs_documents = False
    needs_rotary = True
    cost = "one rotation of queries and keys"
    source = "Chen et al., arXiv 2306.15595"

    def __post_init__(self) -> None:
        check_between("position-interpolation: ratio", self.ratio, Bounds(0.001, 1_000_000))

    def added_multiply_adds(self, shape: ModelShape, lengths: PromptLengths) -> int:
        return 0  # each visible pair is scored once, at whatever distance

    def attention(self, call: AttentionCall) -> Tensor:
        import torch

        ratio = torch.tensor([self.ratio], device=call.query.device)
        return rescaled(call, lambda _: (ratio, ratio))
