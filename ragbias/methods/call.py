"""What a method sees of one attention layer in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ragbias.attention import EncodedKeys, Scoring, rotate
from ragbias.binding.architectures import Architecture
from ragbias.binding.layout import Session
from ragbias.prompt import Span


@dataclass
class SequenceCall:
    """One sequence of the call, padding cut away. Positions equal indices.

    Attributes:
        index: row of the batch.
        pad: padding columns of this row in the queries of this call.
        query: ``[H, Q, d]``; in the prefill ``Q`` is the prompt's length, later the number of new tokens.
        key, value: ``[G, K, d]``, all tokens so far.
        memory: what the method keeps of this row in this layer, from the prefill to the last token.
        spans, lengths: the documents; ``prefix`` tokens stand before them, ``documents_end`` is ``E``.
        new_tail: number of queries of this call that stand after the documents.
        scoring: how the layer scores; its encoding is one that queries and keys do not carry yet.
    """

    index: int
    pad: int
    query: Tensor
    key: Tensor
    value: Tensor
    memory: dict[str, Any]
    spans: tuple[Span, ...]
    new_tail: int
    scoring: Scoring

    @property
    def prefix(self) -> int:
        return self.spans[0][0]

    @property
    def documents_end(self) -> int:
        return self.spans[-1][1]

    @cached_property
    def lengths(self) -> list[int]:
        return [end - begin for begin, end in self.spans]

    def encoded(self, name: str, encode: Callable[[Tensor, int], Tensor]) -> Tensor:
        """The keys ``[G, K, d]`` as ``encode(new keys, index of the first)`` makes them, kept from step to step."""
        kept: EncodedKeys = self.memory.setdefault(name, EncodedKeys())
        return kept.extended(self.key, encode)


@dataclass
class AttentionCall:
    """One attention layer, called with a batch.

    Attributes:
        module: the model's attention module; ``layer`` is its index among ``n_layers``.
        query: ``[batch, H, Q, d]``; ``key``, ``value``: ``[batch, G, K, d]`` as they stand in the cache.
        hidden: ``[batch, Q, hidden_size]``, what the layer read.
        rotation: the model's ``(cos, sin)`` for the queries of this call, each ``[batch or 1, 1, Q, r/2]``; None: the
            layer rotates nothing.
        prefill: whether this pass holds the whole prompt.
        scorings: how the layer scores, for each row.
        projecting: a context in which the layer's projections read what they are given, the method aside.
        plain: the attention the model would have called, mask and all, for other queries and keys, and values where
            they are given as a third; it returns ``[batch, Q, H, d]``.
    """

    module: nn.Module
    layer: int
    n_layers: int
    query: Tensor
    key: Tensor
    value: Tensor
    hidden: Tensor
    rotation: tuple[Tensor, Tensor] | None
    prefill: bool
    session: Session
    scorings: list[Scoring]
    architecture: Architecture
    projecting: Callable[[], AbstractContextManager[None]]
    plain: Callable[..., Tensor]

    def project_query(self, hidden: Tensor) -> Tensor:
        """Queries of ``hidden`` without position, ``[batch, H, T, d]``."""
        with self.projecting():
            return self.architecture.project_query(self.module, hidden.to(self.query.device))

    def project_key(self, hidden: Tensor) -> Tensor:
        """Keys of ``hidden`` without position, ``[batch, G, T, d]``."""
        with self.projecting():
            return self.architecture.project_key(self.module, hidden.to(self.query.device))

    def rotate(self, x: Tensor) -> Tensor:
        """The model's own rotation of the last ``T`` tokens of this call, for ``x`` ``[batch, heads, T, d]``."""
        if self.rotation is None:
            return x
        cos, sin = (part[..., -x.shape[2] :, :] for part in self.rotation)
        return rotate(x, cos, sin, self.architecture.interleaved)

    @property
    def memory(self) -> dict[str, Any]:
        """What the method keeps of the batch in this layer, from the prefill to the last token."""
        return self.session.memory.setdefault((self.layer, None), {})

    @property
    def pads(self) -> Tensor:
        """Padding columns of each row among the keys, int64 ``[batch]``."""
        return torch.tensor([row.pad for row in self.session.rows], device=self.key.device)

    def sequences(self) -> Iterator[SequenceCall]:
        """The sequences of the batch, one by one."""
        for index, row in enumerate(self.session.rows):
            pad = row.pad if self.prefill else 0
            query = self.query[index, :, pad:]
            yield SequenceCall(
                index=index,
                pad=pad,
                query=query,
                key=self.key[index, :, row.pad :],
                value=self.value[index, :, row.pad :],
                memory=self.session.memory.setdefault((self.layer, index), {}),
                spans=row.spans,
                new_tail=query.shape[1] - (row.spans[-1][1] if self.prefill and row.spans else 0),
                scoring=self.scorings[index],
            )
