"""Structured prompting, Hao et al., arXiv 2212.06713."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ragbias.methods.base import SequenceCall
from ragbias.methods.parallel_context_windows import ParallelContextWindows


@dataclass(frozen=True)
class StructuredPrompting(ParallelContextWindows):
    """Parallel context windows in which later tokens attend to each of ``n`` documents with ``1/n`` of the weight.

    A bias of ``-log n`` is added to the scores before the softmax.
    """

    name = "structured-prompting"
    source = "Hao et al., arXiv 2212.06713"

    def document_bias(self, seq: SequenceCall) -> float:
        return -math.log(len(seq.spans))
