"""Measure the attention of a prompt's last token in the plain model."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ragbias import attention
from ragbias.checks import check_not_cancelled
from ragbias.methods.base import AttentionMethod
from ragbias.methods.call import AttentionCall, SequenceCall

if TYPE_CHECKING:
    from torch import Tensor


class LastToken(AttentionMethod):
    """Runs the plain model and records the weights of the prompt's last token.

    ``found[b]`` for sequence ``b`` is float32 ``[n_layers, H, T]``.
    """

    name = "last-token"
    positions = "model"

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self._cancelled = cancelled
        self._found: dict[int, list[Tensor]] = {}

    @property
    def found(self) -> list[Tensor]:
        import torch

        return [torch.stack(by_layer) for _, by_layer in sorted(self._found.items())]

    def attention(self, call: AttentionCall) -> Tensor:
        check_not_cancelled(self._cancelled)
        for seq in call.sequences():
            last = seq.arange(seq.key.shape[1])[-1:]
            scores = attention.segment_scores(seq.query[:, -1:], seq.key, positions=last, scoring=seq.scoring)
            self._found.setdefault(seq.index, []).append(self.recorded(seq, scores.softmax(-1)[:, 0]).cpu())
        return call.plain(call.query, call.key)

    def recorded(self, seq: SequenceCall, weights: Tensor) -> Tensor:
        """The record of the weights ``[H, T]`` in one layer."""
        return weights


class DocumentAttention(LastToken):
    """Records the attention to each document, averaged over heads: ``found[b]`` is ``[n_layers, n]``."""

    name = "document-attention"
    needs_documents = True

    def recorded(self, seq: SequenceCall, weights: Tensor) -> Tensor:
        import torch

        mean = weights.mean(0)
        return torch.stack([mean[begin:end].sum() for begin, end in seq.spans])
