"""PINE, position-invariant inference.

Source: Wang et al., Eliminating Position Bias of Language Models: A Mechanistic Approach, arXiv 2407.01100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ragbias.attention import segment_mass
from ragbias.checks import check_choice
from ragbias.methods.base import LayerRange
from ragbias.methods.segments import SegmentMethod, ending_at

if TYPE_CHECKING:
    from ragbias.binding.call import RowCall


@dataclass(frozen=True)
class Pine(SegmentMethod):
    """Documents see each other in both directions, and stand the nearer to a query the more it attends to them.

    With ``P`` tokens before the documents, lengths ``L_j`` and ``E = P + sum L_j``, in each layer and query head:

    - document ``i`` as query: ``a = softmax(q k^T / sqrt(d))`` without positions over the tokens of the other
      documents, ``imp[i, j] = sum_{t in i, s in j} a[t, s] / L_j``. It stands last, ending at ``E - 1``; before it the
      most important other document, then the next. It sees the prefix, the others whole and itself causally.
    - a token after the documents: the same importance for that token alone over all documents; the most important one
      ends at ``E - 1``. It keeps its true position and sees everything before it.

    Args:
        order: ``"importance"`` as above, ``"reverse"`` puts the most important document farthest, ``"none"`` keeps the
            canonical order (by token ids); the last two are the paper's ablation.
        layers: first and last layer, both included; ``None``: all.
    """

    order: Literal["importance", "reverse", "none"] = "importance"
    layers: LayerRange | None = None

    name = "pine"
    invariant = True
    sees_others = True
    cost = "one more score product and twice the causal scores in the prefill; a second score product in decoding"
    source = "Wang et al., arXiv 2407.01100"

    def __post_init__(self) -> None:
        check_choice("pine: order", self.order, ("importance", "reverse", "none"))

    def document_starts(self, row: RowCall, i: int) -> Tensor:
        begin, stop = row.spans[i]
        query, end = row.query[:, begin:stop], row.documents_end - (stop - begin)
        others = [j for j in range(len(row.spans)) if j != i]
        starts = torch.full((query.shape[0], 1, len(row.spans)), end, device=query.device)
        if others:
            lengths = [row.lengths[j] for j in others]
            raw = torch.cat((row.key[:, row.prefix : begin], row.key[:, stop : row.documents_end]), dim=1)
            mass = segment_mass(query, raw, lengths, row.scoring).sum(1, keepdim=True)
            starts[..., others] = self._place(mass, lengths, end)
        return starts

    def tail_starts(self, row: RowCall, query: Tensor) -> Tensor:
        mass = segment_mass(query, row.key[:, row.prefix : row.documents_end], row.lengths, row.scoring)
        return self._place(mass, row.lengths, row.documents_end)

    def _place(self, mass: Tensor, lengths: list[int], end: int) -> Tensor:
        """Start of each document when they are laid out up to ``end``, the most important last.

        Args:
            mass: attention to each document ``[H, Q, n]``; divided by ``lengths`` it is the importance.

        Returns:
            int64 ``[H, Q, n]``. Equal importances keep their canonical order.
        """
        sizes = torch.tensor(lengths, device=mass.device)
        if self.order == "none":  # the last in canonical order is the nearest
            nearest_first = torch.arange(len(lengths), device=mass.device).flip(0).expand(mass.shape)
        else:
            nearest_first = (mass / sizes).argsort(dim=-1, descending=self.order == "importance", stable=True)
        return ending_at(end, sizes, nearest_first)
