"""Structured prompting, Hao et al., arXiv 2212.06713."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ragbias.methods.base import SequenceCall
from ragbias.methods.parallel_context_windows import ParallelContextWindows


@dataclass(frozen=True)
class StructuredPrompting(ParallelContextWindows):
    """Parallel context windows that scale the attention of later tokens to the ``n`` documents by ``1/n``.

    The scale is a bias of ``-log n`` on the scores, so that the weights sum to one.
    """

    name = "structured-prompting"
    source = "Hao et al., arXiv 2212.06713"

    def document_bias(self, seq: SequenceCall) -> float:
        return -math.log(len(seq.spans))
