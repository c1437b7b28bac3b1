"""An intervention on position ids.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.checks import Bounds, check_whole_between
from ragbias.errors import SpanError
from ragbias.methods import SequenceLayout
from ragbias.methods.base import LayerRange
from studies.interventions.base import Intervention
from studies.interventions.spans import Where, check_where, span_mask

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OFFSET = Bounds(-10_000_000, 10_000_000)


@dataclass(frozen=True)
class ShiftPositions(Intervention):
    """Shift the position ids of a span's queries and keys, without changing visibility.

    Args:
        span: see ``spans.EXPECTED``.
        by: number of positions; 0 changes nothing. No position may become negative.
        layers: first and last layer, both included; ``None``: all, like position ids passed to the model.
    """

    span: Where
    by: int
    layers: LayerRange | None = None

    name = "shift"
    shifts = True
    span_fields = ("span",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "span", check_where("shift: span", self.span))
        check_whole_between("shift: by", self.by, OFFSET)

    def offsets(self, layout: SequenceLayout, count: int, device: torch.device) -> Tensor:
        shifted = span_mask("shift: span", self.span, layout, count, device)
        first = int(shifted.int().argmax())
        if first + self.by < 0:
            raise SpanError(
                f"shift: by={self.by} puts token {first} at position {first + self.by}; expected by >= {-first}"
            )
        return shifted * self.by
