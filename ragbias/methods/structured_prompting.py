"""Structured prompting, Hao et al., arXiv 2212.06713."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ragbias.methods.base import SequenceCall
from ragbias.methods.parallel_context_windows import ParallelContextWindows


@dataclass(frozen=True)
class StructuredPrompting(ParallelContextWindows):
    """Parallel context windows in which tokens after the ``n`` documents attend less to the documents.

    Before the softmax, ``log n`` is subtracted from the scores of these tokens for document keys.
    """

    name = "structured-prompting"
    source = "Hao et al., arXiv 2212.06713"

    def document_bias(self, seq: SequenceCall) -> float:
        return -math.log(len(seq.spans))
