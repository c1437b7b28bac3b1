"""Common ground of the methods that lay the documents out anew: which positions they have, and what they may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ragbias.attention import Group, attend, attend_groups
from ragbias.methods.base import AttentionMethod

if TYPE_CHECKING:
    from ragbias.binding.call import RowCall


class SegmentMethod(AttentionMethod):
    """The prefix is plain; each document sees the prefix and itself causally; the rest sees everything before it.

    A method says whether documents see the other documents whole, where the documents stand for each query, and where
    the tokens after them begin.

    Attributes:
        sees_others: whether a document sees the other documents.
    """

    needs_documents = True
    sees_others: ClassVar[bool] = False

    def document_starts(self, row: RowCall) -> Tensor:
        """Position of document ``j`` for the tokens of document ``i``: int64 ``[H or 1, n, n]``."""
        raise NotImplementedError

    def tail_starts(self, row: RowCall, query: Tensor) -> Tensor:
        """Position of each document for the tokens after them, ``query`` ``[H, Q, d]``: ``[H or 1, Q or 1, n]``.

        By default as for the first document.
        """
        return self.document_starts(row)[:, :1]

    def tail_begin(self, row: RowCall) -> int:
        """Position of the first token after the documents."""
        return row.documents_end

    def tail_bias(self, row: RowCall) -> list[float] | None:
        """What is added to the scores of the tokens after the documents, with prefix, documents and these tokens."""
        return None

    def attend_row(self, row: RowCall, prefill: bool) -> tuple[Tensor, Tensor]:
        keys = row.encoded("keys", lambda new, indices: row.scoring.encoding(new, _offsets(row, indices)))
        if not prefill:
            return self._tail(row, keys)
        parts = [*self._prefix(row, keys), self._documents(row, keys), self._tail(row, keys)]
        outputs, lses = zip(*parts, strict=True)
        return torch.cat(outputs, dim=1), torch.cat(lses, dim=1)

    def _prefix(self, row: RowCall, keys: Tensor) -> list[tuple[Tensor, Tensor]]:
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

    def _documents(self, row: RowCall, keys: Tensor) -> tuple[Tensor, Tensor]:
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

    def _tail(self, row: RowCall, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of the suffix, or of newly generated tokens."""
        total, new, begin = keys.shape[1], row.new_tail, self.tail_begin(row)
        query, last = row.query[:, -new:], begin + total - row.documents_end
        starts = pad(pad(self.tail_starts(row, query), (1, 0)), (0, 1), value=begin)
        return attend(
            query,
            keys,
            row.value,
            positions=torch.arange(last - new, last, device=keys.device),
            scoring=row.scoring,
            segments=[(0, row.prefix), *row.spans, (row.documents_end, total)],
            starts=starts,
            bias=self.tail_bias(row),
            causal=True,
        )


def _offsets(row: RowCall, indices: Tensor) -> Tensor:
    """Place of each key inside its segment: the prefix, a document, or what stands after them."""
    begins = [0, *(begin for begin, _ in row.spans), row.documents_end]
    edges = torch.tensor(begins, device=indices.device)
    return indices - edges[torch.searchsorted(edges, indices, right=True) - 1]


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
