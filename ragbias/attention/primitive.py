"""The attention primitive: softmax attention over segments of keys, each at an assigned position, with its LSE.

Shapes, for one sequence: ``H`` query heads, ``G`` key heads (``H = G * group``, query head ``h`` reads key head
``h // group``), ``Q`` queries, ``K`` keys in ``n`` segments, head dimension ``d``. Scores, softmaxes and log-sum-exps
(LSE) are float32, outputs have the dtype of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ragbias.attention import fused
from ragbias.attention.encoding import Encoding


@dataclass(frozen=True)
class Scoring:
    """How a layer makes a score of a query and a key.

    Attributes:
        encoding: its positions.
        scale: factor of the scores, usually ``d ** -0.5``.
        softcap: scores go through ``softcap * tanh(score / softcap)``; None: they do not.
        window: keys at an assigned distance of ``window`` or more are hidden; None: none are.
    """

    encoding: Encoding
    scale: float
    softcap: float | None = None
    window: int | None = None


def grouped_scores(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    """Scores of queries and keys as they are, without copying keys over the heads of a group.

    Args:
        query: ``[H, Q, d]``.
        key: ``[G, K, d]``.
        scoring: of which scale and softcap count; encoding and window do not.

    Returns:
        float32 ``[H, Q, K]``.
    """
    return _capped(_products(query, key).mul_(scoring.scale), scoring.softcap)


def _products(query: Tensor, key: Tensor) -> Tensor:
    heads, queries, dim = query.shape
    folded = query.reshape(key.shape[0], -1, dim)
    return (folded @ key.transpose(-1, -2)).float().view(heads, queries, key.shape[1])


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


def weigh(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """``(softmax(scores) @ value, logsumexp(scores))``; zeros and ``-inf`` where a query sees no key.

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


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """bool ``[Q, K]``, true where a key may be seen; the last query is aligned with the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(keys - queries)


def placed_scores(
    query: Tensor,
    key: Tensor,
    *,
    positions: Tensor,
    scoring: Scoring,
    starts: Tensor | None = None,
    lengths: Sequence[int] | None = None,
    visible: Tensor | None = None,
) -> Tensor:
    """Scores where segment ``j`` starts at position ``starts[..., j]``; arguments as for ``attend``.

    Returns:
        float32 ``[H, Q, K]``, ``-inf`` where a key is hidden.
    """
    starts, lengths = _segments(key, starts, lengths)
    relative = (positions[:, None] - starts).permute(2, 0, 1)  # [n, H or 1, Q]
    queries = scoring.encoding(query, relative).expand(len(lengths), *query.shape)
    pieces = []
    for moved, behind, segment in zip(queries, relative, torch.split(key, list(lengths), dim=1), strict=True):
        offsets = torch.arange(segment.shape[1], device=key.device)
        scores = _products(moved, segment).mul_(scoring.scale)
        bias = scoring.encoding.bias(behind, offsets)
        scores = _capped(scores if bias is None else scores.add_(bias), scoring.softcap)
        if scoring.window is not None:
            scores.masked_fill_(behind[..., None] - offsets >= scoring.window, -torch.inf)
        pieces.append(scores)
    scores = torch.cat(pieces, dim=-1)
    return scores if visible is None else scores.masked_fill_(~visible, -torch.inf)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    positions: Tensor,
    scoring: Scoring,
    starts: Tensor | None = None,
    lengths: Sequence[int] | None = None,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention where segment ``j`` starts at position ``starts[..., j]``, which may differ by query and head.

    Args:
        query: ``[H, Q, d]``, without position.
        key: ``[G, K, d]``, each key encoded at its offset inside its segment.
        value: ``[G, K, d]``, or ``[H, K, d]`` if already repeated over the group.
        positions: int64 ``[Q]``, positions of the queries, none before the start of a segment.
        scoring: positions, scale, softcap and window of the layer.
        starts: int64 ``[H or 1, Q or 1, n]``; without it and ``lengths``, one segment starts at 0.
        lengths: lengths of the ``n`` segments, in the order of the keys; they sum to ``K``.
        visible: bool, broadcast to ``[Q, K]``; true where a query may see a key, at least one for each; None: all.

    Returns:
        output ``[H, Q, d]`` and LSE float32 ``[H, Q]``. A query whose window holds no key gets zeros and ``-inf``.
    """
    starts, lengths = _segments(key, starts, lengths)
    if starts.shape[1] == 1 and query.shape[1] > 1 and fused.available(query, scoring):
        return fused.attend(query, key, value, positions, starts[:, 0], lengths, scoring, visible)
    scores = placed_scores(
        query, key, positions=positions, starts=starts, lengths=lengths, scoring=scoring, visible=visible
    )
    return weigh(scores, value)


def _segments(key: Tensor, starts: Tensor | None, lengths: Sequence[int] | None) -> tuple[Tensor, Sequence[int]]:
    if starts is None:
        starts = torch.zeros(1, 1, 1, dtype=torch.long, device=key.device)
    return starts, [key.shape[1]] if lengths is None else lengths


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over the union of disjoint sets of keys, exactly, from ``(output, lse)`` over each set."""
    outputs, lses = zip(*parts, strict=True)
    lse = torch.stack(lses).logsumexp(0)
    merged = sum(output.float() * (part - lse).exp()[..., None] for output, part in zip(outputs, lses, strict=True))
    return merged.to(outputs[0].dtype), lse


def segment_mass(query: Tensor, key: Tensor, lengths: Sequence[int], scoring: Scoring) -> Tensor:
    """Share of each query's softmax over all keys that falls on each segment, with queries and keys as they are.

    Args:
        query: ``[H, Q, d]`` and key ``[G, K, d]``.
        lengths: lengths of the ``n`` segments of keys.
        scoring: of which scale and softcap count; encoding and window do not.

    Returns:
        float32 ``[H, Q, n]``; sums to 1 over the segments.
    """
    query, key = query.float(), key.float()
    if query.shape[1] > 1 and len(lengths) <= query.shape[-1] and fused.available(query, scoring):
        return fused.segment_mass(query, key, lengths, scoring.scale)
    weights = grouped_scores(query, key, scoring).softmax(-1)
    return torch.stack([piece.sum(-1) for piece in torch.split(weights, list(lengths), dim=-1)], dim=-1)
