"""The attention primitive: softmax attention and LSE over segments of keys at assigned positions.

``segment_mass`` and ``document_mass`` measure the attention to each document, by which some methods order documents.
"Without positions" means that queries and keys have no position encoding.

Shapes are for one sequence: ``H`` query heads, ``G`` key heads, ``Q`` queries, ``K`` keys, ``n`` segments, head
dimension ``d``. With ``H = G * group``, query head ``h`` reads key head ``h // group``. A segment is a span
``(begin, end)`` of keys. Segments may be in any order, with gaps. Results have the order of the given segments.
Scores, softmaxes and log-sum-exps (LSE) are float32. Outputs have the dtype of the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ragbias.attention import fused
from ragbias.attention.backends import choose_backend, implementation
from ragbias.attention.keys import (
    Group,
    KeyRanges,
    Scoring,
    Scratch,
    Segments,
    Visible,
    causal_bounds,
    concatenate,
    equal_runs,
    merge_adjacent,
    portion_size,
    select,
    visibility_mask,
)
from ragbias.errors import ArgumentError

FEW_QUERIES = 16  # up to this number of queries per key head, K @ Q.T is faster than Q @ K.T
MAX_SCORES = {"cpu": 2**20, "cuda": 2**26}  # maximum number of scores in memory; on a CPU they should fit into a cache


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
    """Compute attention to segments of keys. Segment ``j`` starts at position ``starts[..., j]``.

    The starts may differ by query and head. Scores are computed in blocks, to save memory.

    Args:
        query: ``[H, Q, d]``, not encoded.
        key: ``[G, K, d]``, each key encoded at its offset inside its segment.
        value: ``[G, K, d]``.
        positions: int64 ``[Q]``, positions of the queries; they may be before the start of a segment.
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
        BackendError: the backend in ``scoring`` does not support these arguments, or its kernel fails.
    """
    if causal and bounds is not None:
        raise ArgumentError("causal and bounds both limit the visible keys; pass only one of them")
    segments = [(0, key.shape[1])] if segments is None else segments
    causal = causal and query.shape[1] > 1  # a single query sees all keys
    backend = choose_backend(query, scoring)
    visible = Visible(segments, starts, bias, causal, bounds)
    if backend == "triton":
        return implementation(backend, fused.attend)(query, key, value, positions, scoring, visible)
    if starts is None or starts.shape[1] == 1:  # all queries share the starts
        by_head = replace(visible, starts=None if starts is None else starts[:, 0])
        if backend == "flash" and bias is None and bounds is None:
            return implementation(backend, fused.attend)(query, key, value, positions, scoring, by_head)
        if query.shape[1] > 1 and fused.available(query, scoring):
            return fused.attend(query, key, value, positions, scoring, by_head)
    limits = causal_bounds(segments, query.shape[1], key.device) if causal else bounds
    parts = []
    size = max(1, max_scores(key.device) // max(1, query.shape[0] * sum(end - begin for begin, end in segments)))
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
        parts.append(weigh(scores, select(value, segments)))
    return concatenate(parts)


def attend_groups(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Compute ``attend`` for groups of queries with different segments.

    Returns:
        output ``[H, Q', d]`` and LSE float32 ``[H, Q']``, group after group.
    """
    if (backend := choose_backend(query, scoring)) != "torch":
        return implementation(backend, attend_groups)(query, key, value, groups, scoring)
    if fused.available(query, scoring):
        return fused.attend_groups(query, key, value, groups, scoring)
    parts = []
    for group in groups:
        begin, end = group.queries
        positions = torch.arange(group.position, group.position + end - begin, device=query.device)
        options = dict[str, Any](segments=group.segments, starts=group.starts[:, None], causal=True)
        parts.append(attend(query[:, begin:end], key, value, positions=positions, scoring=scoring, **options))
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
            if (result := apply_softcap(piece, scoring.softcap)) is not piece:  # not in place if it needs a gradient
                piece.copy_(result)
            if scoring.window is not None:
                offsets = torch.arange(piece.shape[-1], device=piece.device)
                piece.masked_fill_(relative[index][..., None] - offsets >= scoring.window, -torch.inf)
            if bias is not None:
                piece += bias[index]
    if bounds is not None:
        last = scores[..., edges[-2] :]
        last.masked_fill_(~visibility_mask(bounds, last.shape[-1]), -torch.inf)
    return scores


def grouped_scores(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    """Compute scores, float32 ``[H, Q, K]``, of queries ``[H, Q, d]`` and keys ``[G, K, d]`` without positions.

    ``scoring`` gives the scale and the softcap. Query heads that share a key head use it without copies.
    """
    return apply_softcap(_products(query * scoring.scale, key), scoring.softcap)


def _segment_products(queries: Tensor, key: Tensor, segments: Segments) -> Tensor:
    """Multiply keys of segment ``j`` by ``queries[j]`` ``[H, Q, d]``. Return all products, float32 ``[H, Q, K]``."""
    count, heads, rows, dim = queries.shape
    folded = queries.reshape(count, len(key), -1, dim)  # [n, G, queries of a key head, d]
    if folded.shape[2] > FEW_QUERIES:
        pieces = [_products(query, key[:, begin:end]) for query, (begin, end) in zip(queries, segments, strict=True)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
    transposed = folded.transpose(-1, -2)
    products = [key.new_empty(len(key), 0, folded.shape[2])]  # needed if all segments are empty
    for first, run, length in equal_runs(segments):
        spans = segments[first : first + run]
        if run > len(key):  # this branch has fewer calls
            keys = key[:, spans[0][0] : spans[-1][1]].unflatten(1, (run, length))
            by_head = [of_head @ transposed[first : first + run, head] for head, of_head in enumerate(keys)]
            products.append(torch.stack(by_head).flatten(1, 2))
        else:
            products += [key[:, begin:end] @ transposed[first + index] for index, (begin, end) in enumerate(spans)]
    return torch.cat(products, dim=1).transpose(-1, -2).float().reshape(heads, rows, -1)


def _products(query: Tensor, key: Tensor) -> Tensor:
    heads, queries, _ = query.shape
    folded = query.reshape(key.shape[0], -1, query.shape[-1])
    if folded.shape[1] <= FEW_QUERIES:
        products = (key @ folded.transpose(-1, -2)).transpose(-1, -2)
    else:
        products = folded @ key.transpose(-1, -2)
    return products.float().reshape(heads, queries, key.shape[1])


def apply_softcap(scores: Tensor, softcap: float | None) -> Tensor:
    """Compute ``softcap * tanh(scores / softcap)``, in place unless scores need a gradient. None changes nothing."""
    if softcap is not None and scores.requires_grad:
        return (scores / softcap).tanh() * softcap
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


def weigh(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``softmax(scores) @ value`` and ``logsumexp(scores)``.

    Args:
        scores: float32 ``[H, Q, K]``; ``-inf`` hides a key.
        value: ``[G or H, K, d]``.

    Returns:
        output ``[H, Q, d]`` and LSE float32 ``[H, Q]``; zeros and ``-inf`` for queries that see no key.
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


def max_scores(device: torch.device) -> int:
    """Return the maximum number of scores to hold in memory at once on this device."""
    return MAX_SCORES["cpu" if device.type == "cpu" else "cuda"]


@torch.no_grad()
def segment_mass(query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool = False) -> Tensor:
    """Return each segment's share of each query's attention to all segments, without positions.

    Args:
        query, key: ``[H, Q, d]`` and ``[G, K, d]``.
        scoring: only its scale and softcap are used.
        total: whether to sum over the queries.

    Returns:
        float32 ``[H, Q, n]``, or ``[H, 1, n]`` with ``total``. The shares of each query sum to 1.
    """
    if (backend := choose_backend(query, scoring)) == "triton":
        return implementation(backend, segment_mass)(query, key, segments, scoring, total)
    return _segment_mass(query, key, segments, scoring, total, Scratch())


@torch.no_grad()
def document_mass(query: Tensor, key: Tensor, spans: Segments, scoring: Scoring) -> Tensor:
    """Return the attention of each document's tokens to each other document, without positions.

    Args:
        query, key: ``[H, K, d]`` and ``[G, K, d]`` of the same tokens.
        spans: the ``n`` documents, ascending.
        scoring: only its scale and softcap are used.

    Returns:
        float32 ``[H, n, n]``. Entry ``[h, i, j]`` is the attention of document ``i`` to document ``j`` in head ``h``,
        summed over the tokens of both. The softmax runs over the tokens of all documents except ``i``. The diagonal
        is 0.
    """
    if (backend := choose_backend(query, scoring)) == "triton":
        return implementation(backend, document_mass)(query, key, spans, scoring)
    mass = query.new_zeros(query.shape[0], len(spans), len(spans), dtype=torch.float32)
    if len(spans) < 2:
        return mass
    scratch = Scratch()
    for first, end in _batches(spans, max_scores(key.device) * len(key) // len(query)):
        if end - first > 1:
            mass[:, first:end] = _batch_mass(query, key, spans, first, end, scoring, scratch)
        else:
            others = [j for j in range(len(spans)) if j != first]
            queries, visible = query[:, slice(*spans[first])], [spans[j] for j in others]
            mass[:, first, others] = _segment_mass(queries, key, visible, scoring, True, scratch)[:, 0]
    return mass


def _batches(spans: Segments, limit: int) -> Iterator[tuple[int, int]]:
    """Yield ranges ``(first, end)`` of documents with at most ``limit`` scores per head, or of one larger document."""
    lengths = [end - begin for begin, end in spans]
    keys = sum(lengths)
    first, queries = 0, 0
    for index, length in enumerate(lengths):
        if index > first and (queries + length) * keys > limit:
            yield first, index
            first, queries = index, 0
        queries += length
    yield first, len(spans)


def _batch_mass(
    query: Tensor, key: Tensor, spans: Segments, first: int, end: int, scoring: Scoring, scratch: Scratch
) -> Tensor:
    """Compute rows ``first`` to ``end - 1`` of ``document_mass``, one block of heads at a time."""
    of_document = one_hot(_segment_of_key(spans, key.device)).float()  # [K, n]
    queries, keys = select(query, spans[first:end]).float(), select(key, spans).float()
    edges = [0, *accumulate(end - begin for begin, end in spans)]
    rows = [(edges[index] - edges[first], edges[index + 1] - edges[first]) for index in range(first, end)]
    group = len(queries) // len(keys)
    count = portion_size(len(keys), max_scores(key.device) // (group * queries.shape[1] * keys.shape[1]))  # key heads
    masses = []
    for heads, block in zip(keys.split(count), queries.split(group * count), strict=True):
        weights = _scores(block, [heads], scoring, scratch)
        for index, (begin, stop) in enumerate(rows, start=first):
            weights[:, begin:stop, edges[index] : edges[index + 1]] = -torch.inf
        weights = torch.softmax(weights, -1, out=weights)
        by_key = torch.stack([weights[:, begin:stop].sum(1) for begin, stop in rows], dim=1)
        masses.append(by_key @ of_document)
    return torch.cat(masses)


def _segment_mass(
    query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool, scratch: Scratch
) -> Tensor:
    pieces = merge_adjacent(segments)
    of_segment = torch.eye(len(segments), device=key.device)[_segment_of_key(segments, key.device)]
    keys, group, queries = len(of_segment), query.shape[0] // key.shape[0], query.shape[1]
    limit = max_scores(key.device)
    count = portion_size(len(key), limit // max(1, group * queries * keys))  # number of key heads in one product
    size = portion_size(queries, limit // max(1, group * count * keys))  # number of queries in one product
    masses = []
    for heads, of_heads in zip(key.split(count), query.split(group * count), strict=True):
        parts = []
        for block in of_heads.split(size, dim=1):
            weights = _scores(block.float(), [heads[:, begin:end].float() for begin, end in pieces], scoring, scratch)
            weights = torch.softmax(weights, -1, out=weights)
            parts.append((weights.sum(1, keepdim=True) if total else weights) @ of_segment)
        masses.append(sum(parts[1:], parts[0]) if total else torch.cat(parts, dim=1))
    return torch.cat(masses)


def _segment_of_key(segments: Segments, device: torch.device) -> Tensor:
    """Return the index of each key's segment, int64 ``[K]``."""
    lengths = [end - begin for begin, end in segments]
    repeats = torch.tensor(lengths, device=device)
    return torch.arange(len(lengths), device=device).repeat_interleave(repeats, output_size=sum(lengths))


def _scores(query: Tensor, keys: Sequence[Tensor], scoring: Scoring, scratch: Scratch) -> Tensor:
    """Compute ``grouped_scores`` ``[H, Q, K]`` for blocks of keys ``[G, K', d]``, in the memory of ``scratch``."""
    heads, queries, dim = query.shape
    groups, rows = len(keys[0]), heads * queries // len(keys[0])
    if len(keys) == 1 and rows <= FEW_QUERIES:
        return grouped_scores(query, keys[0], scoring)
    folded = (query * scoring.scale).reshape(groups, rows, dim)
    scores = scratch.take((groups, rows, sum(piece.shape[1] for piece in keys)), folded)
    begin = 0
    for piece in keys:
        end = begin + piece.shape[1]
        torch.bmm(folded, piece.transpose(-1, -2), out=scores[..., begin:end])
        begin = end
    return apply_softcap(scores.view(heads, queries, -1), scoring.softcap)
