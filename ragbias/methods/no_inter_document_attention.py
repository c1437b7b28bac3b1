"""Attention without links between documents.

Source: Wang et al., Eliminating Position Bias of Language Models, arXiv 2407.01100, as a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.methods.call import SequenceCall
from ragbias.methods.segments import SegmentMethod, as_given

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NoInterDocumentAttention(SegmentMethod):
    """Documents do not see each other; all positions are those of the plain model."""

    name = "nia"
    cost = "less than the plain model in the prefill; a few rotations in decoding"
    source = "baseline in Wang et al., arXiv 2407.01100"

    def document_starts(self, seq: SequenceCall) -> Tensor:
        return as_given(seq)
