"""The documents' columns in a batch of prompts, and the state of the batch between forward passes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ragbias.errors import BindingError, NoDocumentsError, SpanError
from ragbias.methods.base import AttentionMethod
from ragbias.methods.call import SequenceLayout
from ragbias.prompt import Span, check_spans


@dataclass
class Session:
    """The state of a batch of prompts through prefill and decoding.

    Attributes:
        layouts: one for each sequence.
        seen: number of columns in the cache.
        permutation: int64 ``[batch, T]``, the prompt's column for each column inside the model; None: unchanged.
        memory: a method's state by layer and sequence; None for the batch.
        fingerprint: the keys of each prompt's last token in the method's last layer, ``[batch, G, d]``, which change if
            the cache's sequences do.
    """

    layouts: list[SequenceLayout]
    seen: int
    permutation: Tensor | None
    memory: dict[tuple[int, int | None], dict[str, Any]] = field(default_factory=dict)
    fingerprint: Tensor | None = None


Spans = Sequence[Span] | Sequence[Sequence[Span]]


def spans_by_sequence(spans: Spans | None) -> list[list[Span]]:
    """One list of spans for each sequence; a single list holds for all of them."""
    if spans is None or len(spans) == 0:
        return []
    first = spans[0]
    one_each = isinstance(first, Sequence) and (not first or isinstance(first[0], Sequence))
    lists = spans if one_each else [spans]
    return [check_spans(each) for each in lists]  # type: ignore[arg-type]  # distinguished above


def open_session(
    method: AttentionMethod,
    spans: list[list[Span]],
    tokens: Tensor,
    attention_mask: Tensor | Mapping[str, Tensor | None] | None,
) -> Session:
    """Lay out whole prompts.

    Args:
        spans: by sequence, in columns of ``tokens``; ``[]`` without documents.
        tokens: ``[batch, T]`` token ids, or ``[batch, T, hidden]`` embeddings.
        attention_mask: ``[batch, T]``, zeros on the left for padding; or masks ``[batch, 1, T, T]`` by type of layer;
            None: no padding.
    """
    batch, length = tokens.shape[:2]
    if spans and batch % len(spans):
        raise SpanError(f"spans were given for {len(spans)} sequences, but the batch has {batch}")
    repeat = batch // len(spans) if spans else 0  # beams and several return sequences repeat each prompt
    pads = _padding(attention_mask, batch, length)
    layouts, orders = [], []
    for index in range(batch):
        columns = spans[index // repeat] if spans else []
        if method.needs_documents:
            _check_spans_of(method, columns, pads[index], length)
        order = list(range(len(columns)))
        if method.invariant:
            order = method.document_order([_comparable(tokens[index, begin:end]) for begin, end in columns])
        inside = _shifted([columns[i] for i in order], columns, pads[index])
        layouts.append(SequenceLayout(pads[index], length - pads[index], inside, tuple(order)))
        orders.append([columns[i] for i in order])
    moved = any(order != sorted(order) for order in orders)
    permutation = None
    if moved:
        permutation = torch.stack([_permutation(order, length) for order in orders]).to(tokens.device)
    return Session(layouts, 0, permutation)


def _comparable(document: Tensor) -> Sequence[Any]:
    """The sort key of a document: token ids ``[L]``, or the bytes of each embedding ``[L, hidden]``."""
    if document.dim() == 1:
        ids: list[int] = document.tolist()
        return ids
    return [embedding.tobytes() for embedding in document.float().cpu().numpy()]


def _shifted(ordered: list[Span], columns: list[Span], pad: int) -> tuple[Span, ...]:
    """Spans of documents in a new order, from the begin of the first one, without padding."""
    begin = min((begin for begin, _ in columns), default=0) - pad
    spans = []
    for left, right in ordered:
        spans.append((begin, begin + right - left))
        begin += right - left
    return tuple(spans)


def _permutation(ordered: list[Span], length: int) -> Tensor:
    columns = torch.arange(length)
    if ordered:
        begin, end = min(left for left, _ in ordered), max(right for _, right in ordered)
        columns[begin:end] = torch.cat([torch.arange(left, right) for left, right in ordered])
    return columns


def _check_spans_of(method: AttentionMethod, spans: list[Span], pad: int, length: int) -> None:
    if not spans:
        raise missing_documents(method.name)
    for left, right in itertools.pairwise(spans):
        if left[1] != right[0]:
            raise SpanError(
                f"tokens {left[1]} to {right[0]} between spans {left} and {right} belong to no document; "
                "include the separator in each document's span"
            )
    if spans[0][0] < pad or spans[-1][1] > length:
        raise SpanError(f"spans {spans[0]} to {spans[-1]} lie outside the prompt, columns {pad} to {length}")
    if spans[-1][1] == length:
        raise SpanError(f"the last span {spans[-1]} ends the prompt; expected at least one token after the documents")


def missing_documents(method: str) -> NoDocumentsError:
    """The error for a method that needs spans."""
    return NoDocumentsError(
        f"{method} needs to know which tokens are documents; pass spans=[(begin, end), ...] in tokens"
    )


def _seen_by_the_last(mask: Tensor | None) -> Tensor | None:
    """bool ``[batch, K]``: the keys that the last query sees, from a mask ``[batch, 1, Q, K]``."""
    if mask is None:
        return None
    seen = mask[:, 0, -1]
    return seen if seen.dtype == torch.bool else seen >= 0


def _padding(attention_mask: Tensor | Mapping[str, Tensor | None] | None, batch: int, length: int) -> list[int]:
    """Padding columns at the left of each sequence."""
    if isinstance(attention_mask, Mapping):  # models with images make masks by type of layer
        attention_mask = _seen_by_the_last(attention_mask.get("full_attention"))
    if attention_mask is None:
        return [0] * batch
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        raise BindingError("expected a 2-D attention_mask [batch, length]; custom masks are not supported")
    if attention_mask.shape[1] != length:
        raise BindingError(f"the attention mask has {attention_mask.shape[1]} columns, the prompt {length} tokens")
    mask = attention_mask.bool().expand(batch, -1)
    pads = (length - mask.sum(-1)).tolist()
    for index, pad in enumerate(pads):
        if not mask[index, pad:].all():
            raise BindingError(
                f"sequence {index} has padding that is not on the left; set tokenizer.padding_side = 'left'"
            )
        if pad == length:
            raise BindingError(f"sequence {index} has only padding")
    return pads
