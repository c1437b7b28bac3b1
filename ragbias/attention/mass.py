"""How much attention documents get from queries, without positions: what some methods order them by.

Shapes as in ``primitive.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ragbias.attention.backends import chosen
from ragbias.attention.keys import Scoring, Segments, joined
from ragbias.attention.primitive import FEW, capped, grouped_scores, most_scores
from ragbias.attention.scratch import Scratch


@torch.no_grad()
def segment_mass(query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool = False) -> Tensor:
    """Share of each query's softmax over the segments that falls on each, with queries and keys as they are.

    Args:
        query: ``[H, Q, d]`` and key ``[G, K, d]``.
        scoring: of which scale and softcap count; encoding and window do not.
        total: sum over the queries.

    Returns:
        float32 ``[H, Q, n]``, or ``[H, 1, n]`` in total; each query's shares sum to 1.
    """
    if chosen(query, scoring) == "triton":
        from ragbias.attention import triton_backend

        return triton_backend.segment_mass(query, key, segments, scoring, total)
    return _segment_mass(query, key, segments, scoring, total, Scratch())


@torch.no_grad()
def document_mass(query: Tensor, key: Tensor, spans: Segments, scoring: Scoring) -> Tensor:
    """Attention of each document's tokens to each other document, with queries and keys as they are.

    Args:
        query: ``[H, K, d]`` and key ``[G, K, d]``, of the same tokens.
        spans: the ``n`` documents.
        scoring: of which scale and softcap count; encoding and window do not.

    Returns:
        float32 ``[H, n, n]``: the softmax over the tokens of all other documents, summed over the tokens of document
        ``i`` as queries and ``j`` as keys; 0 for its own.
    """
    if chosen(query, scoring) == "triton":
        from ragbias.attention import triton_backend

        return triton_backend.document_mass(query, key, spans, scoring)
    mass = query.new_zeros(query.shape[0], len(spans), len(spans), dtype=torch.float32)
    scratch = Scratch()
    for i, (begin, end) in enumerate(spans):
        others = [j for j in range(len(spans)) if j != i]
        if others:
            own, seen = query[:, begin:end], [spans[j] for j in others]
            mass[:, i, others] = _segment_mass(own, key, seen, scoring, True, scratch)[:, 0]
    return mass


def _segment_mass(
    query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool, scratch: Scratch
) -> Tensor:
    pieces = joined(segments)
    lengths = [end - begin for begin, end in segments]
    keys, group, queries = sum(lengths), query.shape[0] // key.shape[0], query.shape[1]
    repeats = torch.tensor(lengths, device=key.device)
    of_segment = torch.eye(len(segments), device=key.device).repeat_interleave(repeats, 0, output_size=keys)
    most = most_scores(key.device)
    together = max(1, most // max(1, group * queries * keys))  # key heads
    rows = max(1, most // max(1, group * min(together, len(key)) * keys))  # queries
    masses = []
    for heads, own in zip(key.split(together), query.split(group * together), strict=True):
        parts = []
        for block in own.split(rows, dim=1):
            weights = _scores(block.float(), [heads[:, begin:end].float() for begin, end in pieces], scoring, scratch)
            weights = torch.softmax(weights, -1, out=weights)
            parts.append((weights.sum(1, keepdim=True) if total else weights) @ of_segment)
        masses.append(sum(parts[1:], parts[0]) if total else torch.cat(parts, dim=1))
    return torch.cat(masses)


def _scores(query: Tensor, keys: Sequence[Tensor], scoring: Scoring, scratch: Scratch) -> Tensor:
    """``grouped_scores`` of all ``keys``, in ``scratch``; ``[H, Q, K]`` for ``[G, K', d]`` each."""
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
