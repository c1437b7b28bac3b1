"""Common ground of the methods that lay the documents out anew: which positions they have, and what they may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ragbias.attention import attend, causal_mask, merge
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

    def document_starts(self, row: RowCall, i: int) -> Tensor:
        """Position of each document for the tokens of document ``i``: int64 ``[H or 1, 1, n]``."""
        raise NotImplementedError

    def tail_starts(self, row: RowCall, query: Tensor) -> Tensor:
        """Position of each document for the tokens after them, ``query`` ``[H, Q, d]``: ``[H or 1, Q or 1, n]``.

        By default as for the first document.
        """
        return self.document_starts(row, 0)

    def tail_begin(self, row: RowCall) -> int:
        """Position of the first token after the documents."""
        return row.documents_end

    def attend_row(self, row: RowCall, prefill: bool) -> tuple[Tensor, Tensor]:
        if not prefill:
            return self._tail(row)
        # keys up to the last document, each encoded at its offset in its segment
        offsets = torch.cat([torch.arange(length) for length in (row.prefix, *row.lengths)])
        row.memory["placed"] = row.scoring.encoding(
            row.key[:, : row.documents_end], offsets.to(row.key.device)
        ).contiguous()
        parts = [self._prefix(row), *self._documents(row), self._tail(row)]
        outputs, lses = zip(*parts, strict=True)
        return torch.cat(outputs, dim=1), torch.cat(lses, dim=1)

    def _prefix(self, row: RowCall) -> tuple[Tensor, Tensor]:
        """Plain causal attention of the tokens before the documents."""
        end, device = row.prefix, row.query.device
        query = row.query[:, :end]
        if end == 0:
            return query, torch.empty(query.shape[:2], device=device)  # no queries, no results
        return attend(
            query,
            row.memory["placed"][:, :end],
            row.value[:, :end],
            positions=torch.arange(end, device=device),
            scoring=row.scoring,
            visible=causal_mask(end, end, device),
        )

    def _documents(self, row: RowCall) -> list[tuple[Tensor, Tensor]]:
        """Attention of each document's tokens."""
        device, end = row.query.device, row.documents_end
        # repeated here once, and not for each document in the fused kernel
        value = row.value[:, :end].repeat_interleave(row.query.shape[0] // row.value.shape[0], dim=0)
        parts = []
        for i, (begin, stop) in enumerate(row.spans):
            own, starts = stop - begin, self.document_starts(row, i)
            position = int(starts[0, 0, i])
            visible = torch.ones(own, end, dtype=torch.bool, device=device)
            visible[:, begin:stop] = causal_mask(own, own, device)
            keys, values, lengths = row.memory["placed"], value, [row.prefix, *row.lengths]
            if not self.sees_others:
                keys, values, visible = (
                    torch.cat((x[:, : row.prefix], x[:, begin:stop]), dim=1) for x in (keys, values, visible)
                )
                starts, lengths = starts[..., [i]], [row.prefix, own]
            parts.append(
                attend(
                    row.query[:, begin:stop],
                    keys,
                    values,
                    positions=torch.arange(position, position + own, device=device),
                    starts=torch.nn.functional.pad(starts, (1, 0)),  # the prefix starts at 0
                    lengths=lengths,
                    scoring=row.scoring,
                    visible=visible,
                )
            )
        return parts

    def _tail(self, row: RowCall) -> tuple[Tensor, Tensor]:
        """Attention of the suffix, or of newly generated tokens."""
        device, total, new = row.query.device, row.key.shape[1], row.new_tail
        begin, count = self.tail_begin(row), total - row.documents_end
        query, positions = row.query[:, -new:], torch.arange(begin + count - new, begin + count, device=device)
        over_tail = attend(
            query,
            row.scoring.encoding(row.key[:, row.documents_end :], torch.arange(count, device=device)),
            row.value[:, row.documents_end :],
            positions=positions,
            starts=torch.full((1, 1, 1), begin, device=device),
            scoring=row.scoring,
            visible=causal_mask(new, count, device),
        )
        return merge([*self.over_prompt(row, query, positions), over_tail])

    def over_prompt(self, row: RowCall, query: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Attention of ``query`` ``[H, Q, d]``, tokens after the documents, to everything up to the last document."""
        return [
            attend(
                query,
                row.memory["placed"],
                row.value[:, : row.documents_end],
                positions=positions,
                starts=torch.nn.functional.pad(self.tail_starts(row, query), (1, 0)),
                lengths=[row.prefix, *row.lengths],
                scoring=row.scoring,
            )
        ]


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
