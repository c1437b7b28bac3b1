"""The attention primitive: softmax attention and LSE over segments of keys at assigned positions.

Shapes are for one sequence: ``H`` query heads, ``G`` key heads, ``Q`` queries, ``K`` keys, ``n`` segments, head
dimension ``d``. With ``H = G * group``, query head ``h`` reads key head ``h // group``. A segment is a span
``(begin, end)`` of keys. Segments may have gaps and be in any order, which results preserve.
Scores, softmaxes and log-sum-exps (LSE) are float32. Outputs have the dtype of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ragbias.attention import fused
from ragbias.attention.backends import chosen
from ragbias.attention.keys import (
    Group,
    KeyRanges,
    Scoring,
    Segments,
    Visible,
    causal_bounds,
    concatenated,
    equal_runs,
    listed,
    within,
)
from ragbias.errors import ArgumentError

FEW = 16  # for up to this many queries per key head, multiplying keys by queries is faster
MOST_SCORES = {"cpu": 2**20, "cuda": 2**26}  # maximum number in memory; on a CPU they should fit into a cache


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    positions: Tensor,
    scoring: Scoring,
    segments: Segments | None = None,
    starts: Tensor | None = None,
    bias: Sequence[float] | None = None,
    causal: bool = False,
    bounds: KeyRanges | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention with segment ``j`` at position ``starts[..., j]``, which may differ by query and head.

    The scores are computed in blocks, to save memory.

    Args:
        query: ``[H, Q, d]``, not encoded.
        key: ``[G, K, d]``, each key encoded at its offset inside its segment.
        value: ``[G, K, d]``.
        positions: int64 ``[Q]``, positions of the queries; they may lie before the start of a segment.
        scoring: encoding, scale, softcap and window of the layer.
        segments: spans of the visible keys; None for one segment of all keys.
        starts: int64 ``[H or 1, Q or 1, n]``; None if all segments start at 0.
        bias: number added to the scores of each segment; None adds nothing.
        causal: apply a causal mask to the last segment, aligned so that the last query sees every key.
        bounds: a pair of int64 ``[Q]``, not combined with ``causal``. In the last segment, query ``i`` sees the keys at
            offsets ``bounds[0][i] <= offset < bounds[1][i]``.

    Returns:
        output ``[H, Q, d]`` and LSE float32 ``[H, Q]``; zeros and ``-inf`` for queries that see no key.

    Raises:
        ArgumentError: causal and bounds are both given.
        BackendError: a named backend does not support this case, or its kernel fails.
    """
    if causal and bounds is not None:
        raise ArgumentError("causal and bounds both limit the visible keys; pass only one of them")
    segments = [(0, key.shape[1])] if segments is None else segments
    causal = causal and query.shape[1] > 1  # a single query sees all keys
    backend = chosen(query, scoring)
    visible = Visible(segments, starts, bias, causal, bounds)
    if backend == "triton":
        from ragbias.attention import triton_backend

        return triton_backend.attend(query, key, value, positions, scoring, visible)
    if starts is None or starts.shape[1] == 1:  # all queries share the starts
        by_head = replace(visible, starts=None if starts is None else starts[:, 0])
        if backend == "flash" and bias is None and bounds is None:
            from ragbias.attention import flash_backend

            return flash_backend.attend(query, key, value, positions, scoring, by_head)
        if query.shape[1] > 1 and fused.available(query, scoring):
            return fused.attend(query, key, value, positions, scoring, by_head)
    limits = causal_bounds(segments, query.shape[1], key.device) if causal else bounds
    parts = []
    size = max(1, most_scores(key.device) // max(1, query.shape[0] * sum(end - begin for begin, end in segments)))
    for block in (slice(begin, begin + size) for begin in range(0, query.shape[1], size)):
        scores = segment_scores(
            query[:, block],
            key,
            positions=positions[block],
            scoring=scoring,
            segments=segments,
            starts=starts if starts is None or starts.shape[1] == 1 else starts[:, block],
            bias=bias,
            bounds=None if limits is None else (limits[0][block], limits[1][block]),
        )
        parts.append(weigh(scores, listed(value, segments)))
    return concatenated(parts)


def attend_groups(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Compute ``attend`` for groups of queries with different segments.

    Returns:
        output ``[H, Q', d]`` and LSE float32 ``[H, Q']``, group after group.
    """
    backend = chosen(query, scoring)
    if backend == "triton":
        from ragbias.attention import triton_backend

        return triton_backend.attend_groups(query, key, value, groups, scoring)
    if backend == "flash":
        from ragbias.attention import flash_backend

        return flash_backend.attend_groups(query, key, value, groups, scoring)
    if fused.available(query, scoring):
        return fused.attend_groups(query, key, value, groups, scoring)
    parts = []
    for group in groups:
        begin, end = group.queries
        positions = torch.arange(group.position, group.position + end - begin, device=query.device)
        seen = dict[str, Any](segments=group.segments, starts=group.starts[:, None], causal=True)
        parts.append(attend(query[:, begin:end], key, value, positions=positions, scoring=scoring, **seen))
    return concatenated(parts)


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
    """Compute scores with segment ``j`` at position ``starts[..., j]``. For the arguments, see ``attend``.

    Returns:
        float32 ``[H, Q, K]`` for the keys of the segments, ``-inf`` where a key is hidden.
    """
    segments = [(0, key.shape[1])] if segments is None else segments
    if starts is None:
        relative = positions.expand(len(segments), 1, -1)
    else:
        relative = (positions[:, None] - starts).permute(2, 0, 1)  # [n, H or 1, Q]
    encoded = scoring.encoding(query, positions if starts is None else relative) * scoring.scale
    queries = encoded.expand(len(segments), *query.shape)
    scores = _segment_products(queries, key, segments)
    edges = [0, *accumulate(end - begin for begin, end in segments)]
    if bias is not None or scoring.softcap is not None or not scoring.position_in_keys:
        for index in range(len(segments)):
            piece = scores[..., edges[index] : edges[index + 1]]
            by_distance = scoring.encoding.bias(relative[index], piece.shape[-1])
            if by_distance is not None:
                piece += by_distance
            capped(piece, scoring.softcap)
            if scoring.window is not None:
                offsets = torch.arange(piece.shape[-1], device=piece.device)
                piece.masked_fill_(relative[index][..., None] - offsets >= scoring.window, -torch.inf)
            if bias is not None:
                piece += bias[index]
    if bounds is not None:
        last = scores[..., edges[-2] :]
        last.masked_fill_(~within(bounds, last.shape[-1]), -torch.inf)
    return scores


def grouped_scores(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    """Compute scores, float32 ``[H, Q, K]``, of queries ``[H, Q, d]`` and keys ``[G, K, d]`` without positions.

    This applies the scale and softcap of ``scoring``. Keys are not copied for the heads of a group.
    """
    return capped(_products(query * scoring.scale, key), scoring.softcap)


def _segment_products(queries: Tensor, key: Tensor, segments: Segments) -> Tensor:
    """Multiply the keys of each segment by its encoded queries ``[n, H, Q, d]``. Return float32 ``[H, Q, K]``."""
    count, heads, rows, dim = queries.shape
    folded = queries.reshape(count, len(key), -1, dim)  # [n, G, queries of a key head, d]
    if folded.shape[2] > FEW:
        pieces = [_products(own, key[:, begin:end]) for own, (begin, end) in zip(queries, segments, strict=True)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
    turned = folded.transpose(-1, -2)
    products = [key.new_empty(len(key), 0, folded.shape[2])]  # needed if all segments are empty
    for first, run, length in equal_runs(segments):
        spans = segments[first : first + run]
        if run > len(key):  # this branch has fewer calls
            keys = key[:, spans[0][0] : spans[-1][1]].unflatten(1, (run, length))
            by_head = [own @ turned[first : first + run, head] for head, own in enumerate(keys)]
            products.append(torch.stack(by_head).flatten(1, 2))
        else:
            products += [key[:, begin:end] @ turned[first + index] for index, (begin, end) in enumerate(spans)]
    return torch.cat(products, dim=1).transpose(-1, -2).float().reshape(heads, rows, -1)


def _products(query: Tensor, key: Tensor) -> Tensor:
    heads, queries, _ = query.shape
    folded = query.reshape(key.shape[0], -1, query.shape[-1])
    if folded.shape[1] <= FEW:
        products = (key @ folded.transpose(-1, -2)).transpose(-1, -2)
    else:
        products = folded @ key.transpose(-1, -2)
    return products.float().reshape(heads, queries, key.shape[1])


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Compute ``softcap * tanh(scores / softcap)``, in place unless scores need a gradient. None is the identity."""
    if softcap is not None and scores.requires_grad:
        return (scores / softcap).tanh() * softcap
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


def weigh(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``softmax(scores) @ value`` and ``logsumexp(scores)``: zeros and ``-inf`` for queries without keys.

    Args:
        scores: float32 ``[H, Q, K]``; ``-inf`` hides a key.
        value: ``[G or H, K, d]``.

    Returns:
        output ``[H, Q, d]`` and LSE float32 ``[H, Q]``.
    """
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp_min(torch.finfo(torch.float32).min)[..., None]).exp_().to(value.dtype)
    heads, queries, keys = scores.shape
    output = weights.view(value.shape[0], -1, keys) @ value
    return output.view(heads, queries, -1), lse


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge pairs ``(output, lse)`` over disjoint sets of keys into the exact attention over all keys."""
    outputs, lses = zip(*parts, strict=True)
    lse = torch.stack(lses).logsumexp(0)
    merged = sum(output.float() * (part - lse).exp()[..., None] for output, part in zip(outputs, lses, strict=True))
    return merged.to(outputs[0].dtype), lse


def most_scores(device: torch.device) -> int:
    """Return the maximum number of scores in memory."""
    return MOST_SCORES["cpu" if device.type == "cpu" else "cuda"]
