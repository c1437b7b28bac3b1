"""Common ground of the methods that lay the documents out anew: which positions they have, and what they may see."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ragbias.attention import Group, attend, attend_groups, concatenated
from ragbias.methods.base import AttentionMethod

if TYPE_CHECKING:
    from ragbias.methods.call import SequenceCall


class SegmentMethod(AttentionMethod):
    """The prefix is plain; each document sees the prefix and itself causally; the rest sees everything before it.

    A method says whether documents see the other documents whole, where the documents stand for each query, and where
    the tokens after them begin.

    Attributes:
        sees_others: whether a document sees the other documents.
        follows_query: whether the places of the documents differ between the tokens after them, or between heads.
    """

    needs_documents = True
    sees_others: ClassVar[bool] = False
    follows_query: bool = False

    def document_starts(self, row: SequenceCall) -> Tensor:
        """Position of document ``j`` for the tokens of document ``i``: int64 ``[H or 1, n, n]``."""
        raise NotImplementedError

    def tail_starts(self, row: SequenceCall, query: Tensor) -> Tensor:
        """Position of each document for the tokens after them, ``query`` ``[H, Q, d]``: ``[H or 1, Q or 1, n]``.

        By default as for the first document.
        """
        return self.document_starts(row)[:, :1]

    def tail_begin(self, row: SequenceCall) -> int:
        """Position of the first token after the documents."""
        return row.documents_end

    def document_bias(self, row: SequenceCall) -> float:
        """What is added to the scores of the documents for the tokens after them."""
        return 0.0

    def attend_sequence(self, row: SequenceCall, prefill: bool) -> tuple[Tensor, Tensor]:
        if self.follows_query or not row.scoring.position_in_keys:
            keys = row.encoded("offsets", lambda new, first: _at_offsets(row, new, first))
            tail = self._tail(row, keys)
        else:
            keys = _at_offsets(row, row.key, 0) if prefill else row.key  # the documents' queries need them, later none
            tail = self._placed_tail(row)
        if not prefill:
            return tail
        return concatenated([*self._prefix(row, keys), self._documents(row, keys), tail])

    def _prefix(self, row: SequenceCall, keys: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Plain causal attention of the tokens before the documents, if there are any."""
        end = row.prefix
        if end == 0:
            return []
        positions = torch.arange(end, device=keys.device)
        return [
            attend(
                row.query[:, :end],
                keys,
                row.value,
                positions=positions,
                scoring=row.scoring,
                segments=[(0, end)],
                causal=True,
            )
        ]

    def _documents(self, row: SequenceCall, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of each document's tokens; their own document is listed last, and seen causally."""
        starts = self.document_starts(row)
        positions = starts[0].diagonal().tolist()
        groups = []
        for i, span in enumerate(row.spans):
            seen = [j for j in range(len(row.spans)) if j != i and self.sees_others] + [i]
            groups.append(
                Group(
                    queries=span,
                    position=positions[i],
                    segments=[(0, row.prefix), *(row.spans[j] for j in seen)],
                    starts=pad(starts[:, i, seen], (1, 0)),  # the prefix starts at 0
                )
            )
        return attend_groups(row.query, keys, row.value, groups, row.scoring)

    def _tail(self, row: SequenceCall, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of the suffix, or of newly generated tokens, to ``keys`` at their offsets in their segments."""
        bias = self.document_bias(row)
        query = row.query[:, -row.new_tail :]
        return attend(
            query,
            keys,
            row.value,
            positions=self._tail_positions(row),
            scoring=row.scoring,
            segments=[(0, row.prefix), *row.spans, (row.documents_end, row.key.shape[1])],
            starts=self._starts(row, query),
            bias=[0.0, *[bias] * len(row.spans), 0.0] if bias else None,
            causal=True,
        )

    def _placed_tail(self, row: SequenceCall) -> tuple[Tensor, Tensor]:
        """As ``_tail``, where no place depends on the query: every key is encoded at its place, once."""

        def at_places(new: Tensor, first: int) -> Tensor:
            if "starts" not in row.memory:  # the same for all tokens
                row.memory["starts"] = self._starts(row, row.query[:, -1:])[0, 0]
            segment, offset = _segment_and_offset(row, first, new.shape[1])
            return row.scoring.encoding(new, row.memory["starts"][segment] + offset)

        total, bias = row.key.shape[1], self.document_bias(row)
        edges = [0, row.prefix, row.documents_end, total] if bias else [0, total]
        return attend(
            row.query[:, -row.new_tail :],
            row.encoded("placed", at_places),
            row.value,
            positions=self._tail_positions(row),
            scoring=row.scoring,
            segments=list(pairwise(edges)),
            bias=[0.0, bias, 0.0] if bias else None,
            causal=True,
        )

    def _starts(self, row: SequenceCall, query: Tensor) -> Tensor:
        """Position of prefix, documents and what follows, for the last tokens: ``[H or 1, Q or 1, n + 2]``."""
        return pad(pad(self.tail_starts(row, query), (1, 0)), (0, 1), value=self.tail_begin(row))

    def _tail_positions(self, row: SequenceCall) -> Tensor:
        last = self.tail_begin(row) + row.key.shape[1] - row.documents_end
        return torch.arange(last - row.new_tail, last, device=row.key.device)


def _segment_and_offset(row: SequenceCall, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Of ``count`` keys from index ``first`` on: the segment (prefix, a document, what follows), the place in it."""
    indices = torch.arange(first, first + count, device=row.key.device)
    if first >= row.documents_end:  # as in each step of decoding
        return torch.full_like(indices, len(row.spans) + 1), indices - row.documents_end
    edges = torch.tensor([0, *(begin for begin, _ in row.spans), row.documents_end], device=row.key.device)
    segment = torch.searchsorted(edges, indices, right=True) - 1
    return segment, indices - edges[segment]


def _at_offsets(row: SequenceCall, keys: Tensor, first: int) -> Tensor:
    """Keys from index ``first`` on, encoded at their offsets inside their segments."""
    return row.scoring.encoding(keys, _segment_and_offset(row, first, keys.shape[1])[1])


def ending_at(end: int, lengths: Tensor, nearest_first: Tensor) -> Tensor:
    """Start of each document when they are laid out without gaps up to ``end``.

    Args:
        lengths: int64 ``[n]``.
        nearest_first: int64 ``[..., n]``, indices of the documents, the one that ends at ``end - 1`` first.

    Returns:
        int64 ``[..., n]``, in the order of ``lengths``.
    """
    starts = end - lengths[nearest_first].cumsum(-1)
    return torch.empty_like(nearest_first).scatter_(-1, nearest_first, starts)
