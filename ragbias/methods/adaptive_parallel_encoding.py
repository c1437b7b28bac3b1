"""Adaptive parallel encoding (APE), Yang et al., arXiv 2502.05431."""

from __future__ import annotations

from dataclasses import dataclass

from ragbias import attention
from ragbias.checks import Bounds, check_between
from ragbias.methods.base import SequenceCall, Tensor
from ragbias.methods.parallel_context_windows import ParallelContextWindows

FACTOR = Bounds(0.001, 1_000)


@dataclass(frozen=True)
class AdaptiveParallelEncoding(ParallelContextWindows):
    """Parallel context windows with a temperature and a scaling factor for the attention to the documents.

    A token after the documents attends to the keys of all documents with scores ``s / T``. This gives the output
    ``out_C`` and the LSE ``lse_C``. The token attends to all other visible keys with unchanged scores ``s``. This gives
    ``out_O`` and ``lse_O``. Both outputs are merged with the weights ``softmax([S T lse_C, lse_O])``. With
    ``T = S = 1``, answers are bit-identical to those of parallel context windows.

    Args:
        temperature: ``T``, 0.001 to 1,000; values below 1 concentrate attention on fewer document tokens.
        scale: ``S``, 0.001 to 1,000; values below 1 reduce the total attention to the documents.
    """

    temperature: float = 0.9
    scale: float = 0.9

    name = "ape"
    source = "Yang et al., arXiv 2502.05431"

    def __post_init__(self) -> None:
        check_between("ape: temperature", self.temperature, FACTOR)
        check_between("ape: scale", self.scale, FACTOR)

    def attend_tail(
        self, seq: SequenceCall, keys: Tensor, documents: attention.keys.Segments, starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self.temperature == self.scale == 1:
            return super().attend_tail(seq, keys, documents, starts)
        query = seq.query[:, -seq.new_tail :]
        positions = self.tail_positions(seq)
        inner = None if starts is None else starts[..., 1:-1]
        outer = None if starts is None else starts[..., [0, -1]]
        scoring = seq.scoring.divided(self.temperature)
        output, lse = seq.attend(query, keys, positions=positions, scoring=scoring, segments=documents, starts=inner)
        rest = [(0, seq.prefix), (seq.documents_end, seq.key.shape[1])]
        others = seq.attend(query, keys, positions=positions, segments=rest, starts=outer, causal=True)
        return attention.merge([(output, self.scale * self.temperature * lse), others])
