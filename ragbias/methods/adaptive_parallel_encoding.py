"""Adaptive parallel encoding.

Source: Yang et al., APE: Faster and Longer Context-Augmented Generation via Adaptive Parallel Encoding, arXiv
2502.05431.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias import attention
from ragbias.checks import Bounds, check_between
from ragbias.methods.parallel_context_windows import ParallelContextWindows

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.call import SequenceCall

FACTOR = Bounds(0.001, 1_000)


@dataclass(frozen=True)
class AdaptiveParallelEncoding(ParallelContextWindows):
    """As parallel context windows, with the attention of later tokens to the documents sharpened and scaled down.

    For a token after the documents, scores ``s / T`` with the keys of all documents together give ``out_C, lse_C``, and
    plain scores with all other keys that it sees give ``out_O, lse_O``. These are merged with the weights
    ``softmax([S T lse_C, lse_O])``, in float32. ``T = S = 1`` is parallel context windows, to the bit.

    Args:
        temperature: ``T``, 0.001 to 1,000; below 1 it sharpens the attention among the documents.
        scale: ``S``, 0.001 to 1,000; below 1 it lessens that to the documents as a whole.
    """

    temperature: float = 0.9
    scale: float = 0.9

    name = "ape"
    source = "Yang et al., arXiv 2502.05431"

    def __post_init__(self) -> None:
        check_between("ape: temperature", self.temperature, FACTOR)
        check_between("ape: scale", self.scale, FACTOR)

    def attend_tail(
        self, seq: SequenceCall, keys: Tensor, documents: attention.Segments, starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self.temperature == self.scale == 1:
            return super().attend_tail(seq, keys, documents, starts)
        query, positions = seq.query[:, -seq.new_tail :], self.tail_positions(seq)
        output, lse = attention.attend(
            query,
            keys,
            seq.value,
            positions=positions,
            scoring=seq.scoring.divided(self.temperature),
            segments=documents,
            starts=None if starts is None else starts[..., 1:-1],
        )
        others = attention.attend(
            query,
            keys,
            seq.value,
            positions=positions,
            scoring=seq.scoring,
            segments=[(0, seq.prefix), (seq.documents_end, seq.key.shape[1])],
            starts=None if starts is None else starts[..., [0, -1]],
            causal=True,
        )
        return attention.merge([(output, self.scale * self.temperature * lse), others])
