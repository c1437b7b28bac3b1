"""No attention between documents, a baseline in Wang et al., arXiv 2407.01100."""

from __future__ import annotations

from dataclasses import dataclass

from ragbias.methods.base import SequenceCall, Tensor
from ragbias.methods.segments import SegmentMethod, input_starts


@dataclass(frozen=True)
class NoInterDocumentAttention(SegmentMethod):
    """Documents cannot attend to each other. Positions are those of the plain model."""

    name = "nia"
    cost = "less than the plain model in the prefill; a few rotations in decoding"
    source = "baseline in Wang et al., arXiv 2407.01100"

    def document_starts(self, seq: SequenceCall) -> Tensor:
        return input_starts(seq)
