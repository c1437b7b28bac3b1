"""Parallel context windows.

Source: Ratner et al., Parallel Context Windows for Large Language Models, arXiv 2212.10947.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ragbias.methods.segments import SegmentMethod

if TYPE_CHECKING:
    from ragbias.methods.call import SequenceCall


@dataclass(frozen=True)
class ParallelContextWindows(SegmentMethod):
    """Documents do not see each other and all start at position ``P``, right behind the prefix.

    The tokens after them start at ``P + max L_j`` and see everything.
    """

    name = "pcw"
    invariant = True
    cost = "less than the plain model in the prefill; a few rotations in decoding"
    source = "Ratner et al., arXiv 2212.10947"

    def document_starts(self, row: SequenceCall) -> Tensor:
        return torch.full((1, len(row.spans), len(row.spans)), row.prefix, device=row.query.device)

    def tail_begin(self, row: SequenceCall) -> int:
        return row.prefix + max(row.lengths)
