"""Position interpolation, Chen et al., arXiv 2306.15595, with one ratio for all layers or one per layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ragbias import attention
from ragbias.checks import Bounds, check_between
from ragbias.errors import MethodError
from ragbias.methods.base import AttentionCall, AttentionMethod, SequenceCall, Tensor

RATIO = Bounds(0.001, 1_000_000)


@dataclass(frozen=True)
class PositionInterpolation(AttentionMethod):
    """Divide positions by a ratio, which may differ by layer.

    With a ratio per layer, this is LPES (Mitigating Position Bias in Transformers via Layer-Specific Positional
    Embedding Scaling, Findings of ACL 2026, arXiv 2606.27705). Ms-PoE has a ratio per head instead.

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

    def attention(self, call: AttentionCall) -> Tensor:
        import torch

        of_layer = self.ratio[call.layer] if isinstance(self.ratio, tuple) else self.ratio
        ratio = torch.tensor([of_layer], dtype=torch.float32, device=call.query.device)
        return attend_with_ratios(call, lambda _: (ratio, ratio))


def attend_with_ratios(call: AttentionCall, ratios: Callable[[SequenceCall], tuple[Tensor, Tensor]]) -> Tensor:
    """Compute plain attention with positions divided by a ratio per head.

    ``ratios`` returns, for a sequence, the ratios of the query heads ``[H or 1]`` and of the key heads ``[G or 1]``.
    """
    import torch

    by_query, by_key = zip(*(ratios(seq) for seq in call.sequences()), strict=True)

    def divided(x: Tensor, first: int, by: tuple[Tensor, ...]) -> Tensor:
        result = torch.empty_like(x)
        indices = torch.arange(first, first + x.shape[2], device=x.device)
        for index, (layout, ratio, scoring) in enumerate(zip(call.layouts, by, call.scorings, strict=True)):
            positions = (indices - layout.pad).clamp_min(0)  # padding may have any position
            result[index] = scoring.encoding(x[index], positions / ratio[:, None])
        return result

    cached: attention.keys.EncodedKeys = call.memory_of(None).setdefault("keys", attention.keys.EncodedKeys())
    key = cached.update(call.key, lambda new, first: divided(new, first, by_key))
    return call.plain(divided(call.query, call.key.shape[2] - call.query.shape[2], by_query), key)
