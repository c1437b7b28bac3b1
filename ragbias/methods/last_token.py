"""What the last token of a prompt attends to in the plain model: for attention sorting, calibration, experiments."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ragbias import attention
from ragbias.checks import check_not_cancelled
from ragbias.methods.base import AttentionMethod

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.call import AttentionCall, SequenceCall


class LastToken(AttentionMethod):
    """Runs the model as it is and keeps the weights of the prompt's last token.

    By sequence of the batch, ``found[b]`` is float32 ``[n_layers, H, T]``.
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
            self._found.setdefault(seq.index, []).append(self.kept(seq, scores.softmax(-1)[:, 0]).cpu())
        return call.plain(call.query, call.key)

    def kept(self, seq: SequenceCall, weights: Tensor) -> Tensor:
        """What is kept of the weights ``[H, T]`` in one layer."""
        return weights


class DocumentAttention(LastToken):
    """``found[b]`` ``[n_layers, n]`` is the attention to each document, averaged over heads."""

    name = "document-attention"
    needs_documents = True

    def kept(self, seq: SequenceCall, weights: Tensor) -> Tensor:
        import torch

        mean = weights.mean(0)
        return torch.stack([mean[begin:end].sum() for begin, end in seq.spans])
