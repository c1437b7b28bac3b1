"""Attention without links between documents.

Source: Wang et al., Eliminating Position Bias of Language Models, arXiv 2407.01100, where it is a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.methods.segments import SegmentMethod

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.call import SequenceCall


@dataclass(frozen=True)
class NoInterDocumentAttention(SegmentMethod):
    """Documents do not see each other; all positions are the model's."""

    name = "nia"
    cost = "less than the plain model in the prefill; a few rotations in decoding"
    source = "baseline in Wang et al., arXiv 2407.01100"

    def document_starts(self, seq: SequenceCall) -> Tensor:
        begins = seq.lengths.new_tensor([begin for begin, _ in seq.spans])
        return begins.expand(1, len(begins), -1)
