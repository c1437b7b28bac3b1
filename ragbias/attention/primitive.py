"""The attention primitive: softmax attention and LSE over segments of keys at assigned positions.

``segment_mass`` and ``document_mass`` measure the attention to documents. Some methods order documents by this measure.
"Without positions" means that queries and keys have no position encoding.

Shapes are for one sequence: ``H`` query heads, ``G`` key heads, ``Q`` queries, ``K`` keys, ``n`` segments, head
dimension ``d``. With ``H = G * group``, query head ``h`` reads key head ``h // group``. A segment is a span
``(begin, end)`` of keys. Segments may be in any order, with gaps. Results have the order of the given segments.
Scores, softmaxes and log-sum-exps (LSE) are float32. Outputs have the dtype of the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ragbias.attention.backends import backend_module
from ragbias.attention.keys import Group, KeyRanges, Scoring, Segments, Visible, concatenate
from ragbias.errors import ArgumentError


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

    Args:
        query: ``[H, Q, d]``, not encoded.
        key: ``[G, K, d]``, each key encoded at its offset inside its segment.
        value: ``[G, K, d]``.
        positions: int64 ``[Q]``, positions of the queries, possibly before the start of a segment.
        scoring: encoding, scale, softcap and window of the layer.
        segments: spans of the visible keys; None for one segment of all keys.
        starts: int64 ``[H or 1, Q or 1, n]``; None if all segments start at 0.
        bias: number added to the scores of each segment; None adds nothing.
        causal: apply a causal mask to the last segment, aligned so that the last query sees every key.
        bounds: a pair of int64 ``[Q]``, instead of ``causal``. In the last segment, query ``i`` sees the keys at
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
    visible = Visible(segments, starts, bias, causal, bounds)
    result: tuple[Tensor, Tensor] = backend_module(query, scoring).attend(
        query, key, value, positions, scoring, visible
    )
    return result


def attend_groups(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Compute ``attend`` for groups of queries with different segments.

    Returns:
        output ``[H, Q', d]`` and LSE float32 ``[H, Q']`` for the ``Q'`` queries of all groups, group after group.
    """
    backend = backend_module(query, scoring)
    if hasattr(backend, "attend_groups"):  # triton computes all groups in one launch
        result: tuple[Tensor, Tensor] = backend.attend_groups(query, key, value, groups, scoring)
        return result
    parts = []
    for group in groups:
        begin, end = group.queries
        positions = torch.arange(group.position, group.position + end - begin, device=query.device)
        visible = Visible(group.segments, group.starts[:, None], causal=True)
        parts.append(backend.attend(query[:, begin:end], key, value, positions, scoring, visible))
    return concatenate(parts)


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
    mass: Tensor = backend_module(query, scoring).segment_mass(query, key, segments, scoring, total)
    return mass


@torch.no_grad()
def document_mass(query: Tensor, key: Tensor, spans: Segments, scoring: Scoring) -> Tensor:
    """Return how much each document attends to every other document, without positions.

    Args:
        query, key: ``[H, K, d]`` and ``[G, K, d]`` of the same tokens.
        spans: the ``n`` documents, ascending.
        scoring: only its scale and softcap are used.

    Returns:
        float32 ``[H, n, n]``. Entry ``[h, i, j]`` is the attention of document ``i`` to document ``j`` in head ``h``,
        summed over the tokens of both. The softmax runs over the tokens of all documents except ``i``. The diagonal
        is 0.
    """
    mass: Tensor = backend_module(query, scoring).document_mass(query, key, spans, scoring)
    return mass
