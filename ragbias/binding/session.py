"""Sessions: the layouts of a batch of prompts, their padding, and the order in which the model reads the documents."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ragbias.errors import BindingError, SpanError
from ragbias.methods import AttentionMethod, SequenceLayout
from ragbias.prompt import Span

AttentionMask: TypeAlias = Tensor | Mapping[str, Tensor | None] | None


@dataclass
class Session:
    """The state of a batch of prompts through prefill and decoding."""

    layouts: list[SequenceLayout]  # one layout for each sequence
    seen: int  # number of columns in the cache
    permutation: Tensor | None  # int64 [batch, T]: prompt column of each input column; None if no column moves
    memory: dict[tuple[int, int | None], dict[str, Any]] = field(default_factory=dict)  # by (layer, sequence or None)
    last_keys: Tensor | None = None  # keys [batch, G, d] of the last prompt token, to detect moved sequences


def open_session(method: AttentionMethod, spans: list[list[Span]], tokens: Tensor, mask: AttentionMask) -> Session:
    """Return the session of a batch of whole prompts. ``tokens`` are ids ``[batch, T]`` or embeddings."""
    batch, length = tokens.shape[:2]
    if spans and batch % len(spans):
        raise SpanError(f"spans were given for {len(spans)} sequences, but the batch has {batch}")
    repeat = batch // len(spans) if spans else 0  # beams and multiple return sequences repeat each prompt
    layouts, permutations = [], []
    for index, pad in enumerate(_count_padding(mask, batch, length)):
        columns = spans[index // repeat] if spans else []
        if method.needs_documents:
            _check_spans(columns, pad, length)
        order = list(range(len(columns)))
        if method.invariant:
            order = method.document_order([_sort_key(tokens[index, begin:end]) for begin, end in columns])
        begin, end = (columns[0][0], columns[-1][1]) if columns else (0, 0)
        ordered = [columns[i] for i in order]
        edges = itertools.accumulate((right - left for left, right in ordered), initial=begin - pad)
        layouts.append(SequenceLayout(pad, length - pad, tuple(itertools.pairwise(edges)), tuple(order)))
        permutations.append([*range(begin), *itertools.chain(*(range(*span) for span in ordered)), *range(end, length)])
    moved = any(permutation != sorted(permutation) for permutation in permutations)
    return Session(layouts, 0, torch.tensor(permutations, device=tokens.device) if moved else None)


def _sort_key(document: Tensor) -> Sequence[Any]:
    """Return the sort key of a document: its token ids ``[L]``, or the bytes of its embeddings ``[L, hidden]``."""
    if document.dim() == 1:
        return list(document.tolist())
    return [embedding.tobytes() for embedding in document.float().cpu().numpy()]


def _check_spans(spans: list[Span], pad: int, length: int) -> None:
    for left, right in itertools.pairwise(spans):
        if left[1] != right[0]:
            raise SpanError(
                f"tokens {left[1]} to {right[0]} between spans {left} and {right} belong to no document; "
                "include the separator in each document's span"
            )
    if spans[0][0] < pad or spans[-1][1] > length:
        raise SpanError(f"spans {spans[0]} to {spans[-1]} lie outside the prompt, which has columns {pad} to {length}")
    if spans[-1][1] == length:
        raise SpanError(f"the last span {spans[-1]} ends the prompt; expected at least one token after the documents")


def _count_padding(attention_mask: AttentionMask, batch: int, length: int) -> list[int]:
    """Return the number of padding columns at the left of each sequence."""
    if isinstance(attention_mask, Mapping):  # multimodal models use a mask [batch, 1, Q, K] per layer type
        attention_mask = attention_mask.get("full_attention")
        if attention_mask is not None:  # select the keys that the last query sees
            attention_mask = attention_mask[:, 0, -1]
            attention_mask = attention_mask if attention_mask.dtype == torch.bool else attention_mask >= 0
    if attention_mask is None:
        return [0] * batch
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        raise BindingError("expected a 2-D attention_mask [batch, length]; custom masks are not supported")
    if attention_mask.shape[1] != length:
        raise BindingError(f"attention_mask has {attention_mask.shape[1]} columns, but the prompt has {length} tokens")
    mask = attention_mask.bool().expand(batch, -1)
    pads: list[int] = (length - mask.sum(-1)).tolist()
    for index, pad in enumerate(pads):
        if not mask[index, pad:].all():
            raise BindingError(
                f"sequence {index} has padding that is not on the left; set tokenizer.padding_side = 'left'"
            )
    return pads
