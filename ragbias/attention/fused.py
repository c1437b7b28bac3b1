"""PyTorch's fused attention on CPUs, for segments that have the same starts for all queries.

Keys are rotated to their positions once for all queries. Then a fused call computes attention without a score matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ragbias.attention.keys import (
    Group,
    KeyRanges,
    Scoring,
    Scratch,
    Segments,
    Visible,
    causal_bounds,
    concatenate,
    portion_size,
    repeat_heads,
    select,
    visibility_mask,
)

BLOCK = 256  # queries per mask
MAX_MOVED = 2**21  # maximum number of key elements that a call moves, per thread; they should fit into a CPU cache


def _flash(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Make the last dimension contiguous, as PyTorch's kernel assumes, and call the kernel."""
    contiguous = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*contiguous, **options)
    return result


def available(query: Tensor, scoring: Scoring) -> bool:
    """Whether the fused kernel supports the scoring and the query's device and dtype."""
    supported = scoring.softcap is None and scoring.position_in_keys
    return supported and query.device.type == "cpu" and query.dtype in (torch.float32, torch.bfloat16, torch.float16)


def attend(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scoring: Scoring, visible: Visible
) -> tuple[Tensor, Tensor]:
    """Implement ``primitive.attend``. ``visible.starts`` is ``[H or 1, n]`` or None."""
    encoded = scoring.encoding(query, positions)
    if visible.starts is not None:
        encoded, key = scoring.encoding.with_adjacent_pairs(encoded), scoring.encoding.with_adjacent_pairs(key)
    return _attend(encoded, key, value, scoring, visible)


def attend_groups(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Implement ``primitive.attend_groups``."""
    spans = [group.queries for group in groups]
    positions = torch.cat(
        [group.position + torch.arange(end - begin) for group, (begin, end) in zip(groups, spans, strict=True)]
    )
    encoded = scoring.encoding.with_adjacent_pairs(scoring.encoding(select(query, spans), positions))
    key = scoring.encoding.with_adjacent_pairs(key)
    # scratch memory would overwrite tensors of the backward pass
    scratch = None if torch.is_grad_enabled() and (encoded.requires_grad or key.requires_grad) else Scratch()
    parts = []
    first = 0
    for batch in _batches(groups, query.shape[0] * query.shape[-1]):
        count = sum(end - begin for begin, end in (group.queries for group in batch))
        queries = encoded[:, first : first + count]
        if len(batch) > 1:
            parts.append(_attend_batch(queries, key, value, batch, scoring, scratch))
        else:
            (group,) = batch
            visible = Visible(group.segments, group.starts, causal=True)
            parts.append(_attend(queries, key, value, scoring, visible, scratch))
        first += count
    return concatenate(parts)


def _batches(groups: Sequence[Group], size: int) -> list[list[Group]]:
    """Batch neighbouring groups that see the same keys. ``size`` is the number of elements of a key in all heads."""
    batches: list[list[Group]] = []
    for group in groups:
        keys = sum(end - begin for begin, end in group.segments)
        fits = batches and size * keys * (len(batches[-1]) + 1) <= MAX_MOVED * torch.get_num_threads()
        if fits and sorted(group.segments) == sorted(batches[-1][0].segments):
            batches[-1].append(group)
        else:
            batches.append([group])
    return batches


def _attend_batch(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], scoring: Scoring, scratch: Scratch | None
) -> tuple[Tensor, Tensor]:
    """Compute ``_attend`` in one call for groups that see the same keys. Pad groups with fewer queries."""
    heads = len(query)
    spans = sorted(groups[0].segments)
    orders = [sorted(range(len(spans)), key=group.segments.__getitem__) for group in groups]
    starts = torch.stack([group.starts[:, order] for group, order in zip(groups, orders, strict=True)])
    moved = scoring.encoding.move(key, spans, starts, scratch)
    moved, values = (
        repeat_heads(x, heads).expand(len(groups), -1, -1, -1)  # [groups, H, K, d]
        for x in (moved, select(value, spans))
    )
    counts = torch.tensor([end - begin for begin, end in (group.queries for group in groups)])
    index = torch.arange(int(counts.max()))  # index of a query within its group
    real = index < counts[:, None]
    padded = query[:, ((counts.cumsum(0) - counts)[:, None] + index).clamp_max(query.shape[1] - 1)]
    edges = dict(zip(spans, accumulate(end - begin for begin, end in spans), strict=True))
    ends = torch.tensor([edges[group.segments[-1]] for group in groups])
    keys = torch.arange(moved.shape[2])
    first_hidden = (ends - counts)[:, None] + index + 1  # the last query of a group sees its whole segment
    hidden = (keys >= first_hidden[..., None]) & (keys < ends[:, None, None])
    mask = query.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    output, lse = _flash(padded.transpose(0, 1), moved, values, attn_mask=mask[:, None], scale=scoring.scale)
    return output.transpose(0, 1)[:, real], lse.transpose(0, 1)[:, real]


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scoring: Scoring, visible: Visible, scratch: Scratch | None = None
) -> tuple[Tensor, Tensor]:
    """Compute attention of encoded queries. If ``visible`` has starts, rotary pairs must be adjacent."""
    segments, bias, bounds, causal = visible.segments, visible.bias, visible.bounds, visible.causal
    # in memory order, values of adjacent segments need no copy
    order = sorted(range(len(segments)), key=lambda index: segments[index])
    spans = [segments[index] for index in order]
    last = order.index(len(segments) - 1)
    biases = None if bias is None else [bias[index] for index in order]
    if causal and (len(segments) > 1 or query.shape[1] != spans[0][1] - spans[0][0] or bias is not None):
        bounds, causal = causal_bounds(segments, query.shape[1], query.device), False
    values = select(value, spans)
    ordered = Visible(spans, None, biases, causal, bounds)

    @lru_cache(maxsize=1)  # all heads have the same mask
    def mask_of(begin: int) -> Tensor:
        block = slice(begin, begin + BLOCK)
        block_bounds = None if bounds is None else (bounds[0][block], bounds[1][block])
        return _mask(query[:, block], spans, last, block_bounds, biases)

    def attend_heads(heads: slice, query: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        return _attend_moved(query, moved, values[heads], scoring.scale, ordered, mask_of)

    if visible.starts is None:
        return attend_heads(slice(None), query, select(key, spans))
    starts = visible.starts[:, order]
    if len(starts) == 1:
        return attend_heads(slice(None), query, scoring.encoding.move(key, spans, starts, scratch))
    group = len(query) // len(key)
    size = group * values.shape[1] * query.shape[-1]
    count = portion_size(len(key), MAX_MOVED * torch.get_num_threads() // size)  # number of key heads in one call
    parts = []
    for begin in range(0, len(key), count):
        heads, query_heads = slice(begin, begin + count), slice(group * begin, group * (begin + count))
        moved = scoring.encoding.move(key[heads], spans, starts[query_heads], scratch)
        parts.append(attend_heads(heads, query[query_heads], moved))
    return concatenate(parts, dim=0)


def _attend_moved(
    query: Tensor, moved: Tensor, value: Tensor, scale: float, visible: Visible, mask_of: Callable[[int], Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute attention to ``moved`` keys. ``mask_of(i)`` returns the mask of all queries from index ``i``."""
    (heads, queries, dim), bounds = query.shape, visible.bounds
    # a key head and its query heads form a batch entry, which avoids copies of keys and values
    folded = query.view(len(value), -1, queries, dim)
    moved = moved.view(len(value), -1, *moved.shape[1:]).expand(-1, folded.shape[1], -1, -1)
    value = value[:, None].expand_as(moved)

    def run(block: slice, keys: slice, **options: Any) -> tuple[Tensor, Tensor]:
        output, lse = _flash(folded[:, :, block], moved[:, :, keys], value[:, :, keys], scale=scale, **options)
        return output.reshape(heads, -1, dim), lse.reshape(heads, -1)

    if bounds is None and visible.bias is None:
        return run(slice(None), slice(None), is_causal=visible.causal)
    parts = []
    for begin in range(0, queries, BLOCK):
        block = slice(begin, begin + BLOCK)
        keys, blind = slice(None), None
        if bounds is not None and len(visible.segments) == 1:
            keys, blind = _visible_keys((bounds[0][block], bounds[1][block]), moved.shape[2])
        output, lse = run(block, keys, attn_mask=mask_of(begin)[None, None, :, keys])
        if blind is not None and blind.any():  # the kernel assumes that each query sees a key
            output, lse = output.masked_fill(blind[:, None], 0.0), lse.masked_fill(blind, -torch.inf)
        parts.append((output, lse))
    return concatenate(parts)


def _visible_keys(bounds: KeyRanges, keys: int) -> tuple[slice, Tensor]:
    """Return the smallest slice that contains all visible keys, and a mask ``[Q]`` of queries that see no key."""
    lower, upper = bounds[0].clamp(0, keys), bounds[1].clamp(0, keys)
    begin = min(int(lower.min()), keys - 1)
    return slice(begin, max(int(upper.max()), begin + 1)), lower >= upper


def _mask(query: Tensor, spans: Segments, last: int, bounds: KeyRanges | None, bias: Sequence[float] | None) -> Tensor:
    """Return a mask ``[Q, K]`` with the bias of each segment. In segment ``last``, keys out of bounds get ``-inf``."""
    edges = [0, *accumulate(end - begin for begin, end in spans)]
    mask = query.new_zeros(query.shape[1], edges[-1])
    for value, begin, end in zip(bias or (), edges, edges[1:], strict=False):
        mask[:, begin:end] += value
    if bounds is not None:
        begin, end = edges[last], edges[last + 1]
        mask[:, begin:end].masked_fill_(~visibility_mask(bounds, end - begin), -torch.inf)
    return mask
