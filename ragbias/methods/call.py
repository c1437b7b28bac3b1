"""The input of a method: one attention layer in one forward pass, and each sequence of its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ragbias import attention

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SequenceLayout:
    """One sequence of a batch. Spans count from the first token that is not padding.

    Attributes:
        pad: number of padding columns on the left.
        length: number of tokens of the prompt, without padding.
        spans: the documents in the model's order, which is canonical for invariant methods.
        order: the index of each of these documents in the user's prompt.
    """

    pad: int
    length: int
    spans: tuple[tuple[int, int], ...]
    order: tuple[int, ...]


@dataclass
class SequenceCall:
    """One sequence of the call, without padding. Positions equal indices.

    Attributes:
        index: index of the sequence in the batch.
        layer: index of the layer.
        pad: padding columns of this sequence in the queries of this call.
        query: ``[H, Q, d]``; in the prefill ``Q`` is the prompt's length, later the number of new tokens.
        key, value: ``[G, K, d]``, all tokens so far.
        memory: the method's state for this sequence and layer, from the prefill to the last token.
        spans, lengths: the documents; ``prefix`` tokens come before them, ``documents_end`` is ``E``.
        new_tail: number of queries of this call after the documents.
        scoring: the scores of the layer, with the positional encoding that queries and keys still lack.
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
    scoring: attention.Scoring

    @property
    def prefix(self) -> int:
        return self.spans[0][0]

    @property
    def documents_end(self) -> int:
        return self.spans[-1][1]

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each document, int64 ``[n]``."""
        import torch

        return torch.tensor([end - begin for begin, end in self.spans], device=self.key.device)

    def arange(self, *bounds: int) -> Tensor:
        """``range`` as an int64 tensor on the sequence's device."""
        import torch

        return torch.arange(*bounds, device=self.key.device)

    def attend(self, query: Tensor, keys: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """``attention.attend`` to this sequence's values, with its scoring unless ``options`` has another."""
        return attention.attend(query, keys, self.value, **{"scoring": self.scoring, **options})

    def encoded(self, name: str, encode: Callable[[Tensor, int], Tensor]) -> Tensor:
        """The keys ``[G, K, d]`` encoded by ``encode(new keys, index of the first)`` and cached under ``name``."""
        cached: attention.EncodedKeys = self.memory.setdefault(name, attention.EncodedKeys())
        return cached.extended(self.key, encode)


@dataclass
class AttentionCall:
    """One attention layer, called with a batch.

    Attributes:
        layer: index among ``n_layers``.
        query: ``[batch, H, Q, d]``; ``key``, ``value``: ``[batch, G, K, d]`` as in the cache.
        hidden: ``[batch, Q, hidden_size]``, the input of the layer.
        prefill: whether this pass holds the whole prompt.
        layouts, scorings: the documents and the scores of the layer, for each sequence.
        memory_of: the method's state for a sequence (``None``: the batch) and this layer, until the last token.
        project: projects other hidden states to queries ``[batch, H, T, d]`` or keys ``[batch, G, T, d]``, without
            positions.
        rotate: the model's rotation of ``[batch, heads, T, d]``, the last ``T`` tokens of this call.
        plain: the model's own attention with its mask, for other queries, keys and optionally values; returns
            ``[batch, Q, H, d]``.
    """

    layer: int
    n_layers: int
    query: Tensor
    key: Tensor
    value: Tensor
    hidden: Tensor
    prefill: bool
    layouts: Sequence[SequenceLayout]
    scorings: Sequence[attention.Scoring]
    memory_of: Callable[[int | None], dict[str, Any]]
    project: Callable[[Literal["query", "key"], Tensor], Tensor]
    rotate: Callable[[Tensor], Tensor]
    plain: Callable[..., Tensor]

    def sequences(self) -> Iterator[SequenceCall]:
        """The sequences of the batch."""
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
