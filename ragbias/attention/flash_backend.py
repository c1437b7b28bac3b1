"""Attention with FlashAttention 2 (extra ``flash``), if all queries of a head see each segment at the same position.

FlashAttention supports one position per key, so the keys are copied and encoded for each group of queries. Its causal
mask lets the last query see every key, as in ``primitive.attend``. The tests replace the package and do not run the
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from flash_attn import flash_attn_varlen_func
from torch import Tensor

from ragbias.attention.keys import Group, Scoring, Segments, Visible, concatenated, for_heads, launching, listed

TOGETHER = 2**16  # maximum number of keys copied for one call


def attend(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scoring: Scoring, visible: Visible
) -> tuple[Tensor, Tensor]:
    """Compute ``primitive.attend`` with ``starts`` of shape ``[H or 1, n]`` or None, without bias and bounds."""
    encoded = scoring.encoding(query, positions)
    starts = positions.new_zeros(1, len(visible.segments)) if visible.starts is None else visible.starts
    return _attended(encoded, key, value, [(visible.segments, starts)], [query.shape[1]], scoring, visible.causal)


def attend_groups(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Compute ``primitive.attend_groups``. Each call of the kernel handles one batch of ``_calls``."""
    parts = []
    for batch in _calls(groups):
        counts = [end - begin for begin, end in (group.queries for group in batch)]
        firsts = [group.position for group in batch]
        positions = torch.cat([torch.arange(at, at + count) for at, count in zip(firsts, counts, strict=True)])
        encoded = scoring.encoding(listed(query, [group.queries for group in batch]), positions.to(query.device))
        seen = [(group.segments, group.starts) for group in batch]
        parts.append(_attended(encoded, key, value, seen, counts, scoring, causal=True))
    return concatenated(parts)


def _calls(groups: Sequence[Group]) -> list[list[Group]]:
    """Split groups into batches of at most ``TOGETHER`` keys. A group with more keys forms its own batch."""
    calls: list[list[Group]] = []
    keys = 0
    for group in groups:
        count = sum(end - begin for begin, end in group.segments)
        if not calls or keys + count > TOGETHER:
            calls.append([])
            keys = 0
        calls[-1].append(group)
        keys += count
    return calls


def _attended(
    encoded: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Sequence[tuple[Segments, Tensor]],
    counts: Sequence[int],
    scoring: Scoring,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Compute attention of encoded queries ``[H, Q, d]``. The next ``counts[i]`` queries see ``seen[i]``."""
    encoded, key = scoring.encoding.paired(encoded), scoring.encoding.paired(key)
    moved = torch.cat([scoring.encoding.moved(key, segments, starts) for segments, starts in seen], dim=1)
    values = torch.cat([listed(value, segments) for segments, _ in seen], dim=1)
    heads = max(len(moved), len(values))  # if one has all query heads, both need them
    moved, values = for_heads(moved, heads), for_heads(values, heads)
    lengths = [sum(end - begin for begin, end in segments) for segments, _ in seen]
    with launching("flash"):
        output, lse, _ = flash_attn_varlen_func(
            *(x.transpose(0, 1).contiguous() for x in (encoded, moved, values)),  # [Q or K, H or G, d]
            cu_seqlens_q=_edges(counts, key.device),
            cu_seqlens_k=_edges(lengths, key.device),
            max_seqlen_q=max(counts),
            max_seqlen_k=max(lengths),
            softmax_scale=scoring.scale,
            causal=causal,
            softcap=scoring.softcap or 0.0,
            return_attn_probs=True,  # returns the LSE
        )
    # FlashAttention returns an LSE of +inf for a query without keys
    return output.transpose(0, 1), lse.masked_fill(lse == torch.inf, -torch.inf)


def _edges(counts: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(list(accumulate(counts, initial=0)), dtype=torch.int32, device=device)
