"""The primitive on PyTorch's fused CPU attention, for segment starts that do not depend on the query.

Then the keys can be rotated to their places once for all queries, and one fused call does the rest without a matrix of
scores. Same results as the reference in ``primitive.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ragbias.attention.encoding import Alibi

if TYPE_CHECKING:
    from ragbias.attention.primitive import Scoring

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def available(query: Tensor, scoring: Scoring) -> bool:
    """Whether the fused kernel runs for this tensor and computes these scores."""
    plain = scoring.softcap is None and scoring.window is None and not isinstance(scoring.encoding, Alibi)
    return plain and query.device.type == "cpu" and query.dtype in (torch.float32, torch.bfloat16, torch.float16)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    starts: Tensor,
    lengths: Sequence[int],
    scoring: Scoring,
    visible: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """As ``primitive.attend``, for at least one key, with ``starts`` of shape ``[H or 1, n]``."""
    heads, encoding = query.shape[0], scoring.encoding
    sizes = torch.tensor(lengths, device=query.device)
    shifts = starts.repeat_interleave(sizes, dim=-1, output_size=key.shape[1])  # [H or 1, K]
    if starts.shape[0] == 1:  # one place for all heads
        placed = repeat_heads(encoding.moved(key, shifts), heads)
    else:
        group = heads // key.shape[0]
        repeated = key[:, None].expand(-1, group, -1, -1)
        placed = encoding.moved(repeated, shifts.view(-1, group, shifts.shape[-1])).flatten(0, 1)
    mask = None
    if visible is not None:
        mask = torch.zeros(visible.shape, dtype=query.dtype).masked_fill_(~visible, -torch.inf)
    output, lse = _flash(
        encoding(query, positions)[None],
        placed[None],
        repeat_heads(value, heads)[None],
        attn_mask=None if mask is None else mask[None, None],
        scale=scoring.scale,
    )
    return output[0], lse[0].view(heads, -1)


def segment_mass(query: Tensor, key: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
    """As ``primitive.segment_mass``, for at most ``d`` segments: the values are the segments' indicators."""
    heads, queries, dim = query.shape
    indicator = torch.zeros(key.shape[1], dim)
    begin = 0
    for index, length in enumerate(lengths):
        indicator[begin : begin + length, index] = 1
        begin += length
    folded = query.reshape(1, key.shape[0], -1, dim)
    mass: Tensor = _flash(folded, key[None], indicator.expand_as(key)[None], scale=scale)[0]
    return mass.reshape(heads, queries, dim)[..., : len(lengths)]


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """``[G, K, d]`` to ``[H, K, d]``, each key head repeated for the query heads of its group."""
    return x if x.shape[0] == heads else x.repeat_interleave(heads // x.shape[0], dim=0)
