"""The model's attention at positions that are divided by a ratio."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ragbias import attention

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.call import AttentionCall, SequenceCall


def rescaled(call: AttentionCall, ratios: Callable[[SequenceCall], tuple[Tensor, Tensor]]) -> Tensor:
    """Plain attention with each position divided by the ratio of its head.

    Args:
        ratios: for a sequence, the ratios of query heads ``[H or 1]`` and of key heads ``[G or 1]``.

    Returns:
        ``[batch, Q, H, d]``.
    """
    import torch

    by_query, by_key = zip(*(ratios(seq) for seq in call.sequences()), strict=True)

    def divided(x: Tensor, first: int, by: tuple[Tensor, ...]) -> Tensor:
        result = torch.empty_like(x)
        indices = torch.arange(first, first + x.shape[2], device=x.device)
        for index, (layout, ratio, scoring) in enumerate(zip(call.layouts, by, call.scorings, strict=True)):
            positions = (indices - layout.pad).clamp_min(0)  # of padding, any
            result[index] = scoring.encoding(x[index], positions / ratio[:, None])
        return result

    kept: attention.EncodedKeys = call.memory_of(None).setdefault("keys", attention.EncodedKeys())
    key = kept.extended(call.key, lambda new, first: divided(new, first, by_key))
    return call.plain(divided(call.query, call.key.shape[2] - call.query.shape[2], by_query), key)
