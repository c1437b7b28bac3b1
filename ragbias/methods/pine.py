"""PINE, position-invariant inference.

Source: Wang et al., Eliminating Position Bias of Language Models: A Mechanistic Approach, arXiv 2407.01100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ragbias.attention import attend, causal_mask, merge, segment_mass
from ragbias.errors import MethodError
from ragbias.methods.base import AttentionMethod, LayerRange

if TYPE_CHECKING:
    from ragbias.binding.call import AttentionCall, RowCall


@dataclass(frozen=True)
class Pine(AttentionMethod):
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
    needs_documents = True
    invariant = True
    positions = "none"

    def __post_init__(self) -> None:
        if self.order not in ("importance", "reverse", "none"):
            raise MethodError(f"pine: order={self.order!r} is unknown; expected 'importance', 'reverse' or 'none'")

    def attention(self, call: AttentionCall) -> Tensor:
        output = torch.zeros_like(call.query).transpose(1, 2)  # [batch, queries, heads, d]
        for row in call.rows():
            if call.prefill:
                row.memory["placed"] = self._rotated_by_offset(row)
                parts = [self._prefix(row), *self._documents(row), self._tail(row)]
            else:
                parts = [self._tail(row)]
            output[row.index, row.pad :] = torch.cat(parts, dim=1).transpose(0, 1)
        return output

    @staticmethod
    def _rotated_by_offset(row: RowCall) -> Tensor:
        """Keys up to the last document ``[G, E, d]``, rotated by their offset in their segment (prefix or document)."""
        offsets = torch.cat([torch.arange(length) for length in (row.prefix, *row.lengths)])
        return row.rotary(row.key[:, : row.documents_end], offsets.to(row.key.device))

    def _prefix(self, row: RowCall) -> Tensor:
        """Plain causal attention of the tokens before the documents."""
        end, device = row.prefix, row.query.device
        if end == 0:
            return row.query[:, :0]
        output, _ = attend(
            row.query[:, :end],
            row.memory["placed"][:, :end],
            row.value[:, :end],
            positions=torch.arange(end, device=device),
            starts=torch.zeros(1, 1, 1, dtype=torch.long, device=device),
            lengths=[end],
            rotary=row.rotary,
            scale=row.scale,
            visible=causal_mask(end, end, device),
        )
        return output

    def _documents(self, row: RowCall) -> list[Tensor]:
        """Attention of each document's tokens."""
        device, end = row.query.device, row.documents_end
        lengths = torch.tensor(row.lengths, device=device)
        value = row.value[:, :end].repeat_interleave(row.query.shape[0] // row.value.shape[0], dim=0)
        outputs = []
        for i, (begin, stop) in enumerate(row.spans):
            own = stop - begin
            others = [j for j in range(len(row.spans)) if j != i]
            query = row.query[:, begin:stop]
            starts = torch.empty(query.shape[0], 1, len(lengths), dtype=torch.long, device=device)
            starts[..., i] = end - own
            if others:
                raw = torch.cat((row.key[:, row.prefix : begin], row.key[:, stop:end]), dim=1)
                mass = segment_mass(query, raw, [row.lengths[j] for j in others], row.scale).sum(1, keepdim=True)
                starts[..., others] = self._place(mass, lengths[others], end - own)
            visible = torch.ones(own, end, dtype=torch.bool, device=device)
            visible[:, begin:stop] = causal_mask(own, own, device)
            output, _ = attend(
                query,
                row.memory["placed"],
                value,
                positions=torch.arange(end - own, end, device=device),
                starts=torch.nn.functional.pad(starts, (1, 0)),  # the prefix starts at 0
                lengths=[row.prefix, *row.lengths],
                rotary=row.rotary,
                scale=row.scale,
                visible=visible,
            )
            outputs.append(output)
        return outputs

    def _tail(self, row: RowCall) -> Tensor:
        """Attention of the suffix, or of newly generated tokens."""
        device, end, total = row.query.device, row.documents_end, row.key.shape[1]
        query = row.query[:, -row.new_tail :]
        positions = torch.arange(total - row.new_tail, total, device=device)
        mass = segment_mass(query, row.key[:, row.prefix : end], row.lengths, row.scale)
        starts = self._place(mass, torch.tensor(row.lengths, device=device), end)
        over_prompt = attend(
            query,
            row.memory["placed"],
            row.value[:, :end],
            positions=positions,
            starts=torch.nn.functional.pad(starts, (1, 0)),
            lengths=[row.prefix, *row.lengths],
            rotary=row.rotary,
            scale=row.scale,
        )
        over_tail = attend(
            query,
            row.rotary(row.key[:, end:], torch.arange(total - end, device=device)),
            row.value[:, end:],
            positions=positions,
            starts=torch.full((1, 1, 1), end, device=device),
            lengths=[total - end],
            rotary=row.rotary,
            scale=row.scale,
            visible=causal_mask(row.new_tail, total - end, device),
        )
        output, _ = merge([over_prompt, over_tail])
        return output

    def _place(self, mass: Tensor, lengths: Tensor, end: int) -> Tensor:
        """Start of each document when they are laid out up to ``end``, the most important last.

        Args:
            mass: attention to each document ``[H, Q, n]``; divided by ``lengths`` it is the importance.
            lengths: int64 ``[n]``.

        Returns:
            int64 ``[H, Q, n]``. Equal importances keep their canonical order.
        """
        importance = mass / lengths
        if self.order == "none":
            importance = torch.arange(len(lengths), device=mass.device).expand_as(mass)
        order = importance.argsort(dim=-1, descending=self.order != "reverse", stable=True)
        starts = end - lengths[order].cumsum(-1)
        return torch.empty_like(order).scatter_(-1, order, starts)
