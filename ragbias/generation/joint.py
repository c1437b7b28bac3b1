"""Decoding of several prompts side by side, every token of which a method chooses from all of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import LogitsProcessor

from ragbias.methods.base import JointMethod


class FuseLogits(LogitsProcessor):
    """Gives all sequences of the batch the scores ``[V]`` that the method makes of their logits ``[prompts, V]``."""

    def __init__(self, method: JointMethod) -> None:
        self._method = method
        self._memory: dict[str, Any] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._method.fused(scores.float(), self._memory).to(scores.dtype).expand_as(scores)


class CopyFirstSequence(LogitsProcessor):
    """Gives all sequences the scores of the first, of ``[prompts, V]``, so that they go on with the same token."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores[:1].expand_as(scores)
