"""A stand-in for flash-attn 2: ``flash_attn_varlen_func`` in plain PyTorch, for any device."""

from itertools import pairwise

import torch


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """Output ``[Q, H, d]``; with ``return_attn_probs`` also the LSE ``[H, Q]`` and probabilities without meaning."""
    assert (dropout_p, window_size, alibi_slopes, block_table) == (0.0, (-1, -1), None, None)
    assert k.shape == v.shape and q.shape[1] % k.shape[1] == 0 and q.shape[2] <= 256
    assert q.dtype == k.dtype == v.dtype and all(x.stride(-1) == 1 for x in (q, k, v))
    assert all(edges.dtype == torch.int32 and edges.is_contiguous() for edges in (cu_seqlens_q, cu_seqlens_k))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    output, lse = torch.zeros_like(q), torch.zeros(q.shape[1], q.shape[0])
    spans = list(zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True))
    assert max_seqlen_q == max(b - a for (a, b), _ in spans) and max_seqlen_k == max(d - c for _, (c, d) in spans)
    assert (spans[-1][0][1], spans[-1][1][1]) == (len(q), len(k))
    for (a, b), (c, d) in spans:
        keys, values = (x[c:d].float().repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[a:b].float(), keys) * scale
        if softcap:
            scores = softcap * (scores / softcap).tanh()
        if causal:  # aligned to the last query and the last key
            scores = scores.masked_fill(~torch.ones(b - a, d - c).tril(d - c - (b - a)).bool(), -torch.inf)
        output[a:b] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        lse[:, a:b] = scores.logsumexp(-1)
    return (output, lse, None) if return_attn_probs else output
