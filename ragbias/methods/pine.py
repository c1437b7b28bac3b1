"""PINE, position-invariant inference.

Source: Wang et al., Eliminating Position Bias of Language Models: A Mechanistic Approach, arXiv 2407.01100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ragbias.attention import document_mass, segment_mass
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

    @property
    def follows_query(self) -> bool:  # type: ignore[override]
        return self.order != "none"

    def __post_init__(self) -> None:
        check_choice("pine: order", self.order, ("importance", "reverse", "none"))

    def document_starts(self, row: RowCall) -> Tensor:
        mass = document_mass(row.query, row.key, row.spans, row.scoring)
        importance = self._importance(mass, row)
        importance.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)  # the own document is always the nearest
        return self._place(importance, row)

    def tail_starts(self, row: RowCall, query: Tensor) -> Tensor:
        mass = segment_mass(query, row.key, row.spans, row.scoring)
        return self._place(self._importance(mass, row), row)

    def _importance(self, mass: Tensor, row: RowCall) -> Tensor:
        """How near each document shall stand, greater is nearer, from the attention ``[H, Q, n]`` it gets."""
        if self.order == "none":  # the last in canonical order is the nearest
            return torch.arange(len(row.spans), device=mass.device).float().expand(mass.shape).contiguous()
        importance = mass / torch.tensor(row.lengths, device=mass.device)
        return importance if self.order == "importance" else -importance

    def _place(self, importance: Tensor, row: RowCall) -> Tensor:
        """Start of each document when they are laid out up to ``E``, the most important last: int64 ``[H, Q, n]``.

        Equal importances keep their canonical order.
        """
        nearest_first = importance.argsort(dim=-1, descending=True, stable=True)
        return ending_at(row.documents_end, torch.tensor(row.lengths, device=importance.device), nearest_first)
