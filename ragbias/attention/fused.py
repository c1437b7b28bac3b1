"""The primitive on PyTorch's fused CPU attention, for segment starts that do not depend on the query.

Then the keys can be rotated to their places once for all queries, and one fused call does the rest without a matrix of
scores. Same results as the reference in ``primitive.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ragbias.attention.keys import Bounds, Scoring, Segments, causal_bounds, listed, within

BLOCK = 256  # queries whose mask exists at one time

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def available(query: Tensor, scoring: Scoring) -> bool:
    """Whether the fused kernel runs for this tensor and computes these scores."""
    plain = scoring.softcap is None and scoring.places_once
    return plain and query.device.type == "cpu" and query.dtype in (torch.float32, torch.bfloat16, torch.float16)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    starts: Tensor | None,
    segments: Segments,
    scoring: Scoring,
    bias: Sequence[float] | None,
    causal: bool,
    bounds: Bounds | None,
) -> tuple[Tensor, Tensor]:
    """As ``primitive.attend``, with ``starts`` of shape ``[H or 1, n]`` or None."""
    heads, queries, dim = query.shape
    # in the order of memory, so that the values of adjacent segments need no copy
    order = sorted(range(len(segments)), key=lambda index: segments[index])
    spans = [segments[index] for index in order]
    groups = key.shape[0]
    # a key head and its query heads are a batch entry, which spares copies of keys and values for each query head
    folded = scoring.encoding(query, positions).view(groups, -1, queries, dim)
    moved = listed(key, spans) if starts is None else scoring.encoding.moved(key, spans, starts[:, order])
    placed = moved.view(groups, -1, *moved.shape[1:]).expand(-1, folded.shape[1], -1, -1)
    values = listed(value, spans)[:, None].expand_as(placed)

    def run(rows: slice, keys: slice, **options: Any) -> tuple[Tensor, Tensor]:
        output, lse = _flash(folded[:, :, rows], placed[:, :, keys], values[:, :, keys], scale=scoring.scale, **options)
        return output.reshape(heads, -1, dim), lse.reshape(heads, -1)

    everything = slice(None)
    if causal and len(segments) == 1 and queries == placed.shape[2] and bias is None:
        return run(everything, everything, is_causal=True)
    if causal:
        bounds = causal_bounds(segments, queries, query.device)
    if bounds is None and bias is None:
        return run(everything, everything)
    biases = None if bias is None else [bias[index] for index in order]
    parts = []
    for begin in range(0, queries, BLOCK):
        rows = slice(begin, begin + BLOCK)
        seen = None if bounds is None else (bounds[0][rows], bounds[1][rows])
        keys = everything if seen is None or len(segments) > 1 else slice(int(seen[0].min()), int(seen[1].max()))
        mask = _mask(query[:, rows], spans, order.index(len(segments) - 1), seen, biases)[:, keys]
        parts.append(run(rows, keys, attn_mask=mask[None, None]))
    outputs, lses = zip(*parts, strict=True)
    return (outputs[0], lses[0]) if len(parts) == 1 else (torch.cat(outputs, dim=1), torch.cat(lses, dim=1))


def _mask(query: Tensor, spans: Segments, last: int, seen: Bounds | None, bias: Sequence[float] | None) -> Tensor:
    """What is added to the scores ``[Q, K]``: each segment's bias, ``-inf`` for hidden keys of segment ``last``."""
    lengths = [end - begin for begin, end in spans]
    mask = query.new_zeros(query.shape[1], sum(lengths))
    pieces = mask.split(lengths, dim=1)
    for piece, value in zip(pieces, bias or (), strict=False):
        piece += value
    if seen is not None:
        pieces[last].masked_fill_(~within(seen, lengths[last]), -torch.inf)
    return mask
