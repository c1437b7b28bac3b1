"""Backend ``flash``: FlashAttention 2.

FlashAttention needs each key at one position per head. Therefore each call copies the keys and encodes the copy at the
positions of the segments. If the position of a segment differs between the queries of a call, ``torch`` computes the
attention. The causal mask is aligned so that the last query sees every key, as in ``primitive.attend``. The tests use a
substitute for the package ``flash_attn`` and do not run its kernel.
"""

from __future__ import annotations

import torch
from flash_attn import flash_attn_varlen_func
from torch import Tensor

from ragbias.attention import torch_backend
from ragbias.attention.keys import Scoring, Visible, repeat_heads, select
from ragbias.attention.primitive import kernel_errors
from ragbias.attention.torch_backend import document_mass as document_mass
from ragbias.attention.torch_backend import segment_mass as segment_mass


def compute_attention(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scoring: Scoring, visible: Visible
) -> tuple[Tensor, Tensor]:
    """Implement ``primitive.attend``. Use ``torch`` for arguments that FlashAttention does not support."""
    if visible.by_query or visible.bias is not None or visible.bounds is not None:
        return torch_backend.compute_attention(query, key, value, positions, scoring, visible)
    segments = visible.segments
    starts = positions.new_zeros(1, len(segments)) if visible.starts is None else visible.starts[:, 0]
    query, moved = scoring.encoding.move(scoring.encoding(query, positions), key, segments, starts)
    values = select(value, segments)
    heads = max(len(moved), len(values))  # keys and values need the same number of heads
    tensors = query, repeat_heads(moved, heads), repeat_heads(values, heads)
    queries, keys = query.shape[1], moved.shape[1]
    with kernel_errors("flash"):
        output, lse, _ = flash_attn_varlen_func(
            *(x.transpose(0, 1).contiguous() for x in tensors),  # [Q or K, H or G, d]
            cu_seqlens_q=torch.tensor([0, queries], dtype=torch.int32, device=key.device),
            cu_seqlens_k=torch.tensor([0, keys], dtype=torch.int32, device=key.device),
            max_seqlen_q=queries,
            max_seqlen_k=keys,
            softmax_scale=scoring.scale,
            causal=visible.causal,
            softcap=scoring.softcap or 0.0,
            return_attn_probs=True,  # returns the LSE
        )
    # FlashAttention returns an LSE of +inf for a query without keys
    return output.transpose(0, 1), lse.masked_fill(lse == torch.inf, -torch.inf)
