"""Parallel context windows (PCW), Ratner et al., arXiv 2212.10947."""

from __future__ import annotations

from dataclasses import dataclass

from ragbias.methods.base import SequenceCall, Tensor
from ragbias.methods.segments import SegmentMethod, starts_after_prefix


@dataclass(frozen=True)
class ParallelContextWindows(SegmentMethod):
    """Documents cannot attend to each other, and all start at position ``P``, the length of the prefix.

    Tokens after the documents see all tokens before them. Their positions start at ``P + max L_j``, where ``L_j`` is
    the length of document ``j``. Set-Based Prompting (McIlroy-Young et al., arXiv 2406.06581) has the same positions
    and mask.
    """

    name = "pcw"
    invariant = True
    reusable_documents = True
    cost = "less than the plain model in the prefill; a few rotations in decoding"
    source = "Ratner et al., arXiv 2212.10947"

    def document_starts(self, seq: SequenceCall) -> Tensor:
        return starts_after_prefix(seq)

    def tail_begin(self, seq: SequenceCall) -> int:
        return seq.prefix + max(end - begin for begin, end in seq.spans)
