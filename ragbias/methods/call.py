"""What a method is given: one attention layer in one forward pass, and each sequence of its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ragbias.attention import EncodedKeys, Scoring


@dataclass(frozen=True)
class SequenceLayout:
    """One sequence of a batch. Spans count from the first token that is not padding.

    Attributes:
        pad: number of padding columns on the left.
        length: number of tokens of the prompt, without padding.
        spans: the documents in the order in which they run inside the model: canonical for invariant methods.
        order: of each of these, its index in the prompt as it was given.
    """

    pad: int
    length: int
    spans: tuple[tuple[int, int], ...]
    order: tuple[int, ...]


@dataclass
class SequenceCall:
    """One sequence of the call, padding cut away. Positions equal indices.

    Attributes:
        index: of the sequence in the batch.
        layer: index of the layer.
        pad: padding columns of this sequence in the queries of this call.
        query: ``[H, Q, d]``; in the prefill ``Q`` is the prompt's length, later the number of new tokens.
        key, value: ``[G, K, d]``, all tokens so far.
        memory: what the method keeps of this sequence in this layer, from the prefill to the last token.
        spans, lengths: the documents; ``prefix`` tokens come before them, ``documents_end`` is ``E``.
        new_tail: number of queries of this call that come after the documents.
        scoring: how the layer scores; its encoding is one that queries and keys do not carry yet.
    """

    index: int
    layer: int
    pad: int
    query: Tensor
    key: Tensor
    value: Tensor
    memory: dict[str, Any]
    spans: tuple[tuple[int, int], ...]
    new_tail: int
    scoring: Scoring

    @property
    def prefix(self) -> int:
        return self.spans[0][0]

    @property
    def documents_end(self) -> int:
        return self.spans[-1][1]

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each document, int64 ``[n]``."""
        return torch.tensor([end - begin for begin, end in self.spans], device=self.key.device)

    def arange(self, *bounds: int) -> Tensor:
        """Indices of tokens or of documents, int64, on the sequence's device; arguments as of ``range``."""
        return torch.arange(*bounds, device=self.key.device)

    def encoded(self, name: str, encode: Callable[[Tensor, int], Tensor]) -> Tensor:
        """The keys ``[G, K, d]`` as ``encode(new keys, index of the first)`` makes them, kept from step to step."""
        kept: EncodedKeys = self.memory.setdefault(name, EncodedKeys())
        return kept.extended(self.key, encode)


@dataclass
class AttentionCall:
    """One attention layer, called with a batch.

    Attributes:
        layer: index among ``n_layers``.
        query: ``[batch, H, Q, d]``; ``key``, ``value``: ``[batch, G, K, d]`` as the cache holds them.
        hidden: ``[batch, Q, hidden_size]``, what the layer read.
        prefill: whether this pass holds the whole prompt.
        layouts, scorings: where the documents are, and how the layer scores, for each sequence.
        memory_of: what the method keeps of a sequence in this layer, from the prefill to the last token; of the batch
            for ``None``.
        project: queries ``[batch, H, T, d]`` or keys ``[batch, G, T, d]`` of other hidden states, without position.
        rotate: the model's own rotation of the last ``T`` tokens of this call, for ``[batch, heads, T, d]``.
        plain: the attention the model would have called, mask and all, for other queries and keys, and values where
            they are given as a third; it returns ``[batch, Q, H, d]``.
    """

    layer: int
    n_layers: int
    query: Tensor
    key: Tensor
    value: Tensor
    hidden: Tensor
    prefill: bool
    layouts: Sequence[SequenceLayout]
    scorings: Sequence[Scoring]
    memory_of: Callable[[int | None], dict[str, Any]]
    project: Callable[[Literal["query", "key"], Tensor], Tensor]
    rotate: Callable[[Tensor], Tensor]
    plain: Callable[..., Tensor]

    def with_value(self, value: Tensor) -> AttentionCall:
        """The same with other values, ``[batch, G, K, d]``."""

        def plain(query: Tensor, key: Tensor, value: Tensor = value) -> Tensor:
            return self.plain(query, key, value)

        return replace(self, value=value, plain=plain)

    def sequences(self) -> Iterator[SequenceCall]:
        """The sequences of the batch, one by one."""
        for index, layout in enumerate(self.layouts):
            pad = layout.pad if self.prefill else 0
            query = self.query[index, :, pad:]
            yield SequenceCall(
                index=index,
                layer=self.layer,
                pad=pad,
                query=query,
                key=self.key[index, :, layout.pad :],
                value=self.value[index, :, layout.pad :],
                memory=self.memory_of(index),
                spans=layout.spans,
                new_tail=query.shape[1] - (layout.spans[-1][1] if self.prefill and layout.spans else 0),
                scoring=self.scorings[index],
            )
