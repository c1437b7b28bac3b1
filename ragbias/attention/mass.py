"""Attention to documents without positions. Some methods order documents by it. For shapes, see ``primitive``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ragbias.attention.backends import chosen
from ragbias.attention.keys import Scoring, Scratch, Segments, joined, listed, portion
from ragbias.attention.primitive import FEW, capped, grouped_scores, most_scores


@torch.no_grad()
def segment_mass(query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool = False) -> Tensor:
    """Return each segment's share of each query's softmax over all segments, without positions.

    Args:
        query, key: ``[H, Q, d]`` and ``[G, K, d]``.
        scoring: only its scale and softcap are used.
        total: whether to sum over the queries.

    Returns:
        float32 ``[H, Q, n]``, or ``[H, 1, n]`` with ``total``. The shares of each query sum to 1.
    """
    if chosen(query, scoring) == "triton":
        from ragbias.attention import triton_backend

        return triton_backend.segment_mass(query, key, segments, scoring, total)
    return _segment_mass(query, key, segments, scoring, total, Scratch())


@torch.no_grad()
def document_mass(query: Tensor, key: Tensor, spans: Segments, scoring: Scoring) -> Tensor:
    """Return the attention of each document's tokens to each other document, without positions.

    Args:
        query, key: ``[H, K, d]`` and ``[G, K, d]`` of the same tokens.
        spans: the ``n`` documents, ascending.
        scoring: only its scale and softcap are used.

    Returns:
        float32 ``[H, n, n]``. Entry ``[h, i, j]`` is the attention from document ``i`` to document ``j`` in head ``h``,
        summed over the tokens of both. The softmax is over the tokens of all documents except ``i``, so the diagonal
        is 0.
    """
    if chosen(query, scoring) == "triton":
        from ragbias.attention import triton_backend

        return triton_backend.document_mass(query, key, spans, scoring)
    mass = query.new_zeros(query.shape[0], len(spans), len(spans), dtype=torch.float32)
    if len(spans) < 2:
        return mass
    scratch = Scratch()
    for first, end in _calls(spans, most_scores(key.device) * len(key) // len(query)):
        if end - first > 1:
            mass[:, first:end] = _mass_together(query, key, spans, first, end, scoring, scratch)
        else:
            others = [j for j in range(len(spans)) if j != first]
            own, seen = query[:, slice(*spans[first])], [spans[j] for j in others]
            mass[:, first, others] = _segment_mass(own, key, seen, scoring, True, scratch)[:, 0]
    return mass


def _calls(spans: Segments, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges ``(first, end)`` of documents with at most ``most`` scores per head, or with one document."""
    lengths = [end - begin for begin, end in spans]
    keys = sum(lengths)
    first, queries = 0, 0
    for index, length in enumerate(lengths):
        if index > first and (queries + length) * keys > most:
            yield first, index
            first, queries = index, 0
        queries += length
    yield first, len(spans)


def _mass_together(
    query: Tensor, key: Tensor, spans: Segments, first: int, end: int, scoring: Scoring, scratch: Scratch
) -> Tensor:
    """Compute rows ``first`` to ``end - 1`` of ``document_mass``, with one product per block of heads."""
    of_document = one_hot(_segment_of_key(spans, key.device)).float()  # [K, n]
    queries, keys = listed(query, spans[first:end]).float(), listed(key, spans).float()
    edges = [0, *accumulate(end - begin for begin, end in spans)]
    own = [(edges[index] - edges[first], edges[index + 1] - edges[first]) for index in range(first, end)]
    group = len(queries) // len(keys)
    count = portion(len(keys), most_scores(key.device) // (group * queries.shape[1] * keys.shape[1]))  # key heads
    masses = []
    for heads, block in zip(keys.split(count), queries.split(group * count), strict=True):
        weights = _scores(block, [heads], scoring, scratch)
        for index, (begin, stop) in enumerate(own, start=first):
            weights[:, begin:stop, edges[index] : edges[index + 1]] = -torch.inf
        weights = torch.softmax(weights, -1, out=weights)
        by_key = torch.stack([weights[:, begin:stop].sum(1) for begin, stop in own], dim=1)
        masses.append(by_key @ of_document)
    return torch.cat(masses)


def _segment_mass(
    query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool, scratch: Scratch
) -> Tensor:
    pieces = joined(segments)
    of_segment = torch.eye(len(segments), device=key.device)[_segment_of_key(segments, key.device)]
    keys, group, queries = len(of_segment), query.shape[0] // key.shape[0], query.shape[1]
    most = most_scores(key.device)
    count = portion(len(key), most // max(1, group * queries * keys))  # number of key heads in one product
    size = portion(queries, most // max(1, group * count * keys))  # number of queries in one product
    masses = []
    for heads, own in zip(key.split(count), query.split(group * count), strict=True):
        parts = []
        for block in own.split(size, dim=1):
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
    """Compute ``grouped_scores`` for several blocks of keys ``[G, K', d]``. Store ``[H, Q, K]`` in ``scratch``."""
    heads, queries, dim = query.shape
    groups, rows = len(keys[0]), heads * queries // len(keys[0])
    if len(keys) == 1 and rows <= FEW:
        return grouped_scores(query, keys[0], scoring)
    folded = (query * scoring.scale).reshape(groups, rows, dim)
    scores = scratch.take((groups, rows, sum(piece.shape[1] for piece in keys)), folded)
    at = 0
    for piece in keys:
        end = at + piece.shape[1]
        torch.bmm(folded, piece.transpose(-1, -2), out=scores[..., at:end])
        at = end
    return capped(scores.view(heads, queries, -1), scoring.softcap)
