"""The attention primitive: softmax attention over segments of keys, each at an assigned position, with its LSE.

Shapes, for one sequence: ``H`` query heads, ``G`` key heads (``H = G * group``, query head ``h`` reads key head
``h // group``), ``Q`` queries, ``K`` keys in ``n`` segments, head dimension ``d``. Scores, softmaxes and log-sum-exps
(LSE) are float32, outputs have the dtype of the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ragbias.attention import fused
from ragbias.attention.rotary import Rotary


def grouped_scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """``scale * query @ key^T`` without copying keys over the heads of a group.

    Args:
        query: ``[..., H, Q, d]``, with the same leading dimensions as ``key`` or none there.
        key: ``[G, K, d]``.

    Returns:
        float32 ``[..., H, Q, K]``.
    """
    *lead, heads, queries, dim = query.shape
    folded = query.reshape(*lead, key.shape[0], -1, dim)
    return (folded @ key.transpose(-1, -2)).float().mul_(scale).view(*lead, heads, queries, key.shape[1])


def weigh(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """``(softmax(scores) @ value, logsumexp(scores))``.

    Args:
        scores: float32 ``[H, Q, K]``; ``-inf`` hides a key.
        value: ``[G, K, d]``.

    Returns:
        output ``[H, Q, d]`` and LSE float32 ``[H, Q]``.
    """
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp_().to(value.dtype)
    heads, queries, keys = scores.shape
    output = weights.view(value.shape[0], -1, keys) @ value
    return output.view(heads, queries, -1), lse


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """bool ``[Q, K]``, true where a key may be seen; the last query is aligned with the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(keys - queries)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    positions: Tensor,
    starts: Tensor,
    lengths: Sequence[int],
    rotary: Rotary,
    scale: float,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention where segment ``j`` starts at position ``starts[..., j]``, which may differ by query and head.

    Args:
        query: ``[H, Q, d]``, without position.
        key: ``[G, K, d]``, each key rotated by its offset inside its segment.
        value: ``[G, K, d]``, or ``[H, K, d]`` if already repeated over the group.
        positions: int64 ``[Q]``, positions of the queries, none before the start of a segment.
        starts: int64 ``[H or 1, Q or 1, n]``.
        lengths: lengths of the ``n`` segments, in the order of the keys; they sum to ``K``.
        rotary: the model's rotation.
        scale: factor of the scores, usually ``d ** -0.5``.
        visible: bool, broadcast to ``[Q, K]``; true where a query may see a key, at least one for each; None: all.

    Returns:
        output ``[H, Q, d]`` and LSE float32 ``[H, Q]``.
    """
    if starts.shape[1] == 1 and query.shape[1] > 1 and fused.available(query):
        return fused.attend(query, key, value, positions, starts[:, 0], lengths, rotary, scale, visible)
    relative = (positions[:, None] - starts).permute(2, 0, 1)  # [n, H or 1, Q]
    rotated = rotary(query, relative)  # [n, H, Q, d]
    pieces = torch.split(key, list(lengths), dim=1)
    scores = torch.cat([grouped_scores(q, k, scale) for q, k in zip(rotated, pieces, strict=True)], dim=-1)
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    return weigh(scores, value)


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over the union of disjoint sets of keys, exactly, from ``(output, lse)`` over each set."""
    outputs, lses = zip(*parts, strict=True)
    lse = torch.stack(lses).logsumexp(0)
    merged = sum(output.float() * (part - lse).exp()[..., None] for output, part in zip(outputs, lses, strict=True))
    return merged.to(outputs[0].dtype), lse


def segment_mass(query: Tensor, key: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
    """Share of each query's softmax over all keys that falls on each segment.

    Args:
        query: ``[H, Q, d]`` and key ``[G, K, d]``, both as they are (rotated or not).
        lengths: lengths of the ``n`` segments of keys.

    Returns:
        float32 ``[H, Q, n]``; sums to 1 over the segments.
    """
    query, key = query.float(), key.float()
    if query.shape[1] > 1 and fused.available(query) and len(lengths) <= query.shape[-1]:
        return fused.segment_mass(query, key, lengths, scale)
    weights = grouped_scores(query, key, scale).softmax(-1)
    return torch.stack([piece.sum(-1) for piece in torch.split(weights, list(lengths), dim=-1)], dim=-1)
