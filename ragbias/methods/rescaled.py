"""The model's attention at positions that are divided by a ratio."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ragbias.binding.call import AttentionCall, RowCall


def rescaled(call: AttentionCall, ratios: Callable[[RowCall], tuple[Tensor, Tensor]]) -> Tensor:
    """Plain attention with each position divided by the ratio of its head.

    Args:
        ratios: for a row, the ratios of query heads ``[H or 1]`` and of key heads ``[G or 1]``.

    Returns:
        ``[batch, Q, H, d]``.
    """
    query, key = call.query.clone(), call.key.clone()
    for row in call.rows():
        by_query, by_key = ratios(row)
        count, new = row.key.shape[1], row.query.shape[1]
        positions = torch.arange(count, device=key.device, dtype=torch.float32)
        encoding = row.scoring.encoding
        key[row.index, :, -count:] = encoding(row.key, positions / by_key[:, None])
        query[row.index, :, -new:] = encoding(row.query, positions[-new:] / by_query[:, None])
    return call.plain(query, key)
