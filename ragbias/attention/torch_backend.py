"""Backend ``torch``: attention in PyTorch, on any device. For shapes and terms, see ``primitive``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ragbias.attention.keys import (
    KeyRanges,
    Scoring,
    Segments,
    Visible,
    causal_bounds,
    concatenate,
    segment_of_key,
    select,
    visibility_mask,
)

FEW_QUERIES = 16  # up to this number of queries per key head, K @ Q.T is faster than Q @ K.T
BLOCK = 256  # number of queries in a mask of the fused kernel
MAX_MOVED = 2**19  # key elements that a call moves at once per thread; they should fit into a CPU cache
MAX_SCORES = {"cpu": 2**20, "cuda": 2**26}  # scores in memory; on a CPU they should fit into a cache


def compute_attention(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scoring: Scoring, visible: Visible
) -> tuple[Tensor, Tensor]:
    """Implement ``primitive.attend``. Without a fused kernel, compute scores in blocks of queries, to save memory."""
    if query.shape[1] > 1 and not visible.by_query and fused_available(query, scoring):
        return _compute_fused(query, key, value, positions, scoring, visible)
    segments, starts = visible.segments, visible.starts
    bounds = causal_bounds(segments, query.shape[1], key.device) if visible.causal else visible.bounds
    keys = sum(end - begin for begin, end in segments)
    size = max(1, _max_scores(key) // max(1, query.shape[0] * keys))  # queries in a block
    parts = []
    for begin in range(0, query.shape[1], size):
        block = slice(begin, begin + size)
        block_starts = starts[:, block] if starts is not None and visible.by_query else starts
        block_bounds = None if bounds is None else (bounds[0][block], bounds[1][block])
        scores = segment_scores(
            query[:, block],
            key,
            positions=positions[block],
            scoring=scoring,
            segments=segments,
            starts=block_starts,
            bias=visible.bias,
            bounds=block_bounds,
        )
        parts.append(weigh(scores, select(value, segments)))
    return concatenate(parts)


def segment_scores(
    query: Tensor,
    key: Tensor,
    *,
    positions: Tensor,
    scoring: Scoring,
    segments: Segments | None = None,
    starts: Tensor | None = None,
    bias: Sequence[float] | None = None,
    bounds: KeyRanges | None = None,
) -> Tensor:
    """Compute the scores of queries for the keys of segments. For the arguments, see ``attend``.

    Returns:
        float32 ``[H, Q, K]`` for the keys of all segments in order; ``-inf`` where a key is hidden.
    """
    segments = [(0, key.shape[1])] if segments is None else segments
    if starts is None:
        relative = positions.expand(len(segments), 1, -1)
        encoded = scoring.encoding(query, positions)
    else:
        relative = (positions[:, None] - starts).permute(2, 0, 1)  # [n, H or 1, Q]
        encoded = scoring.encoding(query, relative)
    queries = (encoded * scoring.scale).expand(len(segments), *query.shape)
    pieces = []
    for index, (begin, end) in enumerate(segments):
        piece = _products(queries[index], key[:, begin:end])
        by_distance = scoring.encoding.bias(relative[index], end - begin)
        if by_distance is not None:
            piece += by_distance
        piece = _apply_softcap(piece, scoring.softcap)
        if scoring.window is not None:
            offsets = torch.arange(end - begin, device=piece.device)
            piece.masked_fill_(relative[index][..., None] - offsets >= scoring.window, -torch.inf)
        if bias is not None:
            piece += bias[index]
        pieces.append(piece)
    if bounds is not None:
        pieces[-1].masked_fill_(~visibility_mask(bounds, pieces[-1].shape[-1]), -torch.inf)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


def grouped_scores(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    """Compute the scores, float32 ``[H, Q, K]``, of queries ``[H, Q, d]`` and keys ``[G, K, d]``.

    Queries and keys are not encoded: only the scale and the softcap of ``scoring`` are used. All query heads of a key
    head share its keys, without copies.
    """
    return _apply_softcap(_products(query * scoring.scale, key), scoring.softcap)


def _products(query: Tensor, key: Tensor) -> Tensor:
    heads, queries, dim = query.shape
    folded = query.reshape(len(key), -1, dim)
    if folded.shape[1] <= FEW_QUERIES:
        products = (key @ folded.transpose(-1, -2)).transpose(-1, -2)
    else:
        products = folded @ key.transpose(-1, -2)
    return products.float().reshape(heads, queries, key.shape[1])


def _apply_softcap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else (scores / softcap).tanh() * softcap


def weigh(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``softmax(scores) @ value`` and the LSE of scores ``[H, Q, K]``. Values are ``[G or H, K, d]``.

    The results of a query that sees no key are zeros and ``-inf``.
    """
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp_min(torch.finfo(torch.float32).min)[..., None]).exp_().to(value.dtype)
    heads, queries, keys = scores.shape
    output = weights.view(value.shape[0], -1, keys) @ value
    return output.view(heads, queries, -1), lse


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge outputs ``[H, Q, d]`` and LSEs ``[H, Q]`` of attention to disjoint sets of keys. The result is exact."""
    outputs, lses = zip(*parts, strict=True)
    lse = torch.stack(lses).logsumexp(0)
    merged = sum(output.float() * (part - lse).exp()[..., None] for output, part in zip(outputs, lses, strict=True))
    return merged.to(outputs[0].dtype), lse


def segment_mass(query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool) -> Tensor:
    """Implement ``primitive.segment_mass`` in blocks of heads and queries, to save memory."""
    keys = select(key, segments).float()
    of_segment = one_hot(segment_of_key(segments, key.device), len(segments)).float()  # [K, n]
    group = len(query) // len(key)
    limit = _max_scores(key) // max(1, group * keys.shape[1])  # pairs of a query and a key head in one block
    count = min(len(key), max(1, limit // max(1, query.shape[1])))  # key heads in one block
    masses = []
    for heads, of_heads in zip(keys.split(count), query.split(group * count), strict=True):
        parts = []
        for block in of_heads.split(max(1, limit // count), dim=1):
            weights = grouped_scores(block.float(), heads, scoring)
            weights = torch.softmax(weights, -1, out=weights)
            if total:
                weights = weights.sum(1, keepdim=True)
            parts.append(weights @ of_segment)
        masses.append(sum(parts[1:], parts[0]) if total else torch.cat(parts, dim=1))
    return torch.cat(masses).float()  # autocast changes the dtype of products


def document_mass(query: Tensor, key: Tensor, spans: Segments, scoring: Scoring) -> Tensor:
    """Implement ``primitive.document_mass``."""
    mass = query.new_zeros(query.shape[0], len(spans), len(spans), dtype=torch.float32)
    if len(spans) < 2:
        return mass
    for index, (begin, end) in enumerate(spans):
        others = [other for other in range(len(spans)) if other != index]
        visible = [spans[other] for other in others]
        mass[:, index, others] = segment_mass(query[:, begin:end], key, visible, scoring, True)[:, 0]
    return mass


def _max_scores(key: Tensor) -> int:
    return MAX_SCORES["cpu" if key.device.type == "cpu" else "cuda"]


def fused_available(query: Tensor, scoring: Scoring) -> bool:
    """Whether the fused kernel supports the scoring and the query's device and dtype."""
    supported = scoring.softcap is None and scoring.position_in_keys
    return supported and query.device.type == "cpu" and query.dtype in (torch.float32, torch.bfloat16, torch.float16)


def _compute_fused(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scoring: Scoring, visible: Visible
) -> tuple[Tensor, Tensor]:
    """Compute ``attend`` with PyTorch's kernel for CPUs. All queries of a head must share the starts of segments.

    The keys are rotated to their positions, some key heads at a time. The kernel stores no score matrix.
    """
    query = scoring.encoding(query, positions)
    starts = visible.starts
    group = len(query) // len(key)  # query heads of a key head
    count = len(key)  # key heads at a time
    if starts is not None and len(starts) > 1:
        keys = sum(end - begin for begin, end in visible.segments)
        count = max(1, MAX_MOVED * torch.get_num_threads() // (group * keys * query.shape[-1]))
    order = sorted(range(len(visible.segments)), key=visible.segments.__getitem__)  # adjacent segments need no copy
    spans = [visible.segments[index] for index in order]
    values = select(value, spans)
    bounds = visible.bounds
    is_causal = visible.causal
    if is_causal and (len(spans) > 1 or query.shape[1] != values.shape[1] or visible.bias is not None):
        is_causal = False  # the kernel's own causal mask does not support these cases
        bounds = causal_bounds(visible.segments, query.shape[1], key.device)

    @lru_cache(maxsize=1)  # all heads have the same mask
    def mask_of(begin: int) -> tuple[Tensor, slice]:
        return _mask(query[:, begin : begin + BLOCK], begin, replace(visible, bounds=bounds), order)

    is_masked = bounds is not None or visible.bias is not None
    parts = []
    for begin in range(0, len(key), count):
        heads = slice(begin, begin + count)
        query_heads = slice(group * begin, group * (begin + count))
        queries = query[query_heads]
        if starts is None:
            moved = select(key[heads], spans)
        else:
            of_heads = starts[:, 0] if len(starts) == 1 else starts[query_heads, 0]
            queries, moved = scoring.encoding.move(queries, key[heads], spans, of_heads[:, order])
        # a key head and its query heads form a batch entry, which avoids copies of keys and values
        folded = queries.unflatten(0, (-1, group))
        keys_by_head = moved.unflatten(0, (len(folded), -1)).expand(-1, group, -1, -1)
        inputs = folded, keys_by_head, values[heads, None].expand_as(keys_by_head)
        if is_masked:
            output, lse = _compute_masked(*inputs, scoring.scale, mask_of)
        else:
            output, lse = _flash(*inputs, scale=scoring.scale, is_causal=is_causal)
        parts.append((output.flatten(0, 1), lse.flatten(0, 1)))
    return concatenate(parts, dim=0)


def _compute_masked(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask_of: Callable[[int], tuple[Tensor, slice]]
) -> tuple[Tensor, Tensor]:
    """Call PyTorch's kernel for blocks of queries.

    ``mask_of(begin)`` returns the mask of the block that begins at query ``begin``, and the slice of the keys that the
    mask covers. Queries are ``[G, H / G, Q, d]``. Keys and values are ``[G, H / G, K, d]``.
    """
    parts = []
    for begin in range(0, query.shape[2], BLOCK):
        mask, keys = mask_of(begin)
        output, lse = _flash(
            query[:, :, begin : begin + BLOCK],
            key[:, :, keys],
            value[:, :, keys],
            scale=scale,
            attn_mask=mask[None, None],
        )
        blind = mask.isneginf().all(-1)  # queries that see no key, which the kernel does not support
        parts.append((output.masked_fill(blind[:, None], 0.0), lse.masked_fill(blind, -torch.inf)))
    return concatenate(parts, dim=2)


def _mask(query: Tensor, begin: int, visible: Visible, order: Sequence[int]) -> tuple[Tensor, slice]:
    """Return the mask ``[Q, K']`` of a block of queries, and the slice of the ``K'`` keys that the mask covers.

    The block begins at index ``begin``. The keys are those of the visible segments, in ``order``. If there is only one
    segment, the slice leaves out keys at both ends that no query of the block sees.
    """
    lengths = [visible.segments[index][1] - visible.segments[index][0] for index in order]
    edges = dict(zip(order, pairwise(accumulate(lengths, initial=0)), strict=True))  # columns of each segment
    mask = query.new_zeros(query.shape[1], sum(lengths))
    for index, bias in enumerate(visible.bias or ()):
        mask[:, slice(*edges[index])] += bias
    keys = slice(None)
    if visible.bounds is not None:
        lower, upper = (bound[begin : begin + query.shape[1]] for bound in visible.bounds)
        last = mask[:, slice(*edges[len(order) - 1])]
        seen = visibility_mask((lower, upper), last.shape[1])
        last.masked_fill_(~seen, -torch.inf)
        if len(order) == 1:
            used = seen.any(0).nonzero()
            if len(used):
                keys = slice(int(used[0]), int(used[-1]) + 1)
    return mask[:, keys], keys


def _flash(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Make the last dimension contiguous, as PyTorch's kernel assumes, and call the kernel."""
    contiguous = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*contiguous, **options)
    return result
