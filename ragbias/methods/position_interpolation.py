"""Position interpolation, in all layers alike or layer by layer.

Source: Chen et al., Extending Context Window of Large Language Models via Positional Interpolation, arXiv 2306.15595.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ragbias.checks import Bounds, check_between
from ragbias.errors import MethodError
from ragbias.methods.base import AttentionMethod
from ragbias.methods.rescaled import rescaled

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.arithmetic import ModelShape, PromptLengths
    from ragbias.methods.call import AttentionCall

RATIO = Bounds(0.001, 1_000_000)


@dataclass(frozen=True)
class PositionInterpolation(AttentionMethod):
    """Position ``t`` becomes ``t / r``, in all heads; ``r`` is one for all layers, or ``r_l`` of layer ``l``.

    One for each layer is that of LPES (Mitigating Position Bias in Transformers via Layer-Specific Positional Embedding
    Scaling, Findings of ACL 2026, arXiv 2606.27705): Ms-PoE by layer instead of by head.

    Args:
        ratio: 0.001 to 1,000,000; 1 changes nothing. A list has one ratio for each layer of the model.
    """

    ratio: float | Sequence[float] = 1.5

    name = "position-interpolation"
    needs_documents = False
    needs_rotary = True
    cost = "one rotation of queries and keys"
    source = "Chen et al., arXiv 2306.15595"

    def __post_init__(self) -> None:
        if isinstance(self.ratio, (list, tuple)):
            for layer, ratio in enumerate(self.ratio):
                check_between(f"position-interpolation: ratio of layer {layer}", ratio, RATIO)
            object.__setattr__(self, "ratio", tuple(self.ratio))
        else:
            check_between("position-interpolation: ratio", cast(float, self.ratio), RATIO)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        super().validate(hidden_size, n_layers)
        if isinstance(self.ratio, tuple) and len(self.ratio) != n_layers:
            raise MethodError(
                f"position-interpolation: {len(self.ratio)} ratios for a model of {n_layers} layers; "
                "expected one for each, or a single number"
            )

    def added_multiply_adds(self, shape: ModelShape, lengths: PromptLengths) -> int:
        return 0  # each visible pair is scored once, at whatever distance

    def attention(self, call: AttentionCall) -> Tensor:
        import torch

        of_layer = self.ratio[call.layer] if isinstance(self.ratio, tuple) else self.ratio
        ratio = torch.tensor([of_layer], dtype=torch.float32, device=call.query.device)
        return rescaled(call, lambda _: (ratio, ratio))
