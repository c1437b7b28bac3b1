"""Backend ``flash``: FlashAttention 2. In each head, all queries must see a segment of keys at the same position.

FlashAttention supports one position per key. Therefore the keys are copied and encoded for each group of queries. The
causal mask is aligned so that the last query sees every key, as in ``primitive.attend``. The tests replace the package
``flash_attn`` and do not run its kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from flash_attn import flash_attn_varlen_func
from torch import Tensor

from ragbias.attention.keys import Group, Scoring, Segments, Visible, concatenate, kernel_errors, repeat_heads, select

MAX_KEYS = 2**16  # maximum number of keys copied for one call


def attend(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scoring: Scoring, visible: Visible
) -> tuple[Tensor, Tensor]:
    """Implement ``primitive.attend``. ``visible.starts`` is ``[H or 1, n]`` or None.

    ``visible.bias`` and ``visible.bounds`` must be None.
    """
    encoded = scoring.encoding(query, positions)
    starts = positions.new_zeros(1, len(visible.segments)) if visible.starts is None else visible.starts
    return _attend_encoded(encoded, key, value, [(visible.segments, starts)], [query.shape[1]], scoring, visible.causal)


def attend_groups(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Implement ``primitive.attend_groups``, with one call of the kernel per batch of groups."""
    parts = []
    for batch in _batches(groups):
        spans = [group.queries for group in batch]
        counts = [end - begin for begin, end in spans]
        firsts = [group.position for group in batch]
        positions = torch.cat([torch.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)])
        encoded = scoring.encoding(select(query, spans), positions.to(query.device))
        visible = [(group.segments, group.starts) for group in batch]
        parts.append(_attend_encoded(encoded, key, value, visible, counts, scoring, causal=True))
    return concatenate(parts)


def _batches(groups: Sequence[Group]) -> list[list[Group]]:
    """Split groups into batches of at most ``MAX_KEYS`` keys. A group with more keys is a separate batch."""
    batches: list[list[Group]] = []
    keys = 0
    for group in groups:
        count = sum(end - begin for begin, end in group.segments)
        if not batches or keys + count > MAX_KEYS:
            batches.append([])
            keys = 0
        batches[-1].append(group)
        keys += count
    return batches


def _attend_encoded(
    encoded: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Sequence[tuple[Segments, Tensor]],
    counts: Sequence[int],
    scoring: Scoring,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Compute attention of encoded queries. Group ``i`` has ``counts[i]`` queries, and sees segments ``visible[i]``."""
    encoded, key = scoring.encoding.with_adjacent_pairs(encoded), scoring.encoding.with_adjacent_pairs(key)
    moved = torch.cat([scoring.encoding.move(key, segments, starts) for segments, starts in visible], dim=1)
    values = torch.cat([select(value, segments) for segments, _ in visible], dim=1)
    heads = max(len(moved), len(values))  # keys and values need the same number of heads
    moved, values = repeat_heads(moved, heads), repeat_heads(values, heads)
    lengths = [sum(end - begin for begin, end in segments) for segments, _ in visible]
    with kernel_errors("flash"):
        output, lse, _ = flash_attn_varlen_func(
            *(x.transpose(0, 1).contiguous() for x in (encoded, moved, values)),  # [Q or K, H or G, d]
            cu_seqlens_q=_cumulative_lengths(counts, key.device),
            cu_seqlens_k=_cumulative_lengths(lengths, key.device),
            max_seqlen_q=max(counts),
            max_seqlen_k=max(lengths),
            softmax_scale=scoring.scale,
            causal=causal,
            softcap=scoring.softcap or 0.0,
            return_attn_probs=True,  # returns the LSE
        )
    # FlashAttention returns an LSE of +inf for a query without keys
    return output.transpose(0, 1), lse.masked_fill(lse == torch.inf, -torch.inf)


def _cumulative_lengths(counts: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(list(accumulate(counts, initial=0)), dtype=torch.int32, device=device)
