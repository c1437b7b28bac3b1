"""Ms-PoE, multi-scale positional encoding.

Source: Zhang et al., Found in the Middle: How Language Models Use Long Contexts Better via Plug-and-Play Positional
Encoding, arXiv 2403.04797, and its released code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ragbias import attention
from ragbias.checks import Bounds, check_between, check_choice
from ragbias.errors import MethodError
from ragbias.methods.base import AttentionMethod, LayerRange
from ragbias.methods.rescaled import rescaled

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.arithmetic import ModelShape, PromptLengths
    from ragbias.methods.call import AttentionCall, SequenceCall

RATIO = Bounds(0.001, 1_000_000)
OUTLIER = 3  # a weight is an outlier above this many times the mean


@dataclass(frozen=True)
class MsPoE(AttentionMethod):
    """Position ``t`` becomes ``t / r_h`` in head ``h``; the ratios are fixed in the prefill, in each layer.

    The score of a head is the share of keys whose weight, for the prompt's last token, exceeds three times the mean.
    The most position-aware head, with the highest score, gets ``min_ratio``, the others follow linearly.

    Args:
        min_ratio, max_ratio: 0.001 to 1,000,000.
        layers: first and last layer, both included; ``None`` as last: to the end.
        variant: ``"paper"``: as above, up to ``max_ratio`` for the last head; with grouped-query heads one ratio for
            each key head, by the mean score of its query heads, so that relative positions stay true.
            ``"released"``: what the code does: scores without positions; ratios ``min + (max - min) * i / H``, where
            head ``h`` takes ``i = order[h]`` of the heads sorted by score; keys take the ratio of the first query head
            of their group. ``"ranked"``: the released code with ``i`` the rank of head ``h``.
        heads: ``"by-awareness"``, or ``"reversed"``: the first head gets the largest ratio and nothing is measured.
    """

    min_ratio: float = 1.2
    max_ratio: float = 1.8
    layers: LayerRange | None = (2, None)
    variant: Literal["paper", "released", "ranked"] = "paper"
    heads: Literal["by-awareness", "reversed"] = "by-awareness"

    name = "ms-poe"
    needs_documents = False
    needs_rotary = True
    default_layers = "third to last"
    cost = "one row of scores in the prefill; one rotation of queries and keys"
    source = "Zhang et al., arXiv 2403.04797"

    def __post_init__(self) -> None:
        check_between("ms-poe: min_ratio", self.min_ratio, RATIO)
        check_between("ms-poe: max_ratio", self.max_ratio, RATIO)
        if self.min_ratio > self.max_ratio:
            raise MethodError(f"ms-poe: min_ratio={self.min_ratio} is greater than max_ratio={self.max_ratio}")
        check_choice("ms-poe: variant", self.variant, ("paper", "released", "ranked"))
        check_choice("ms-poe: heads", self.heads, ("by-awareness", "reversed"))

    def added_multiply_adds(self, shape: ModelShape, lengths: PromptLengths) -> int:
        return shape.width * lengths.total if self.heads == "by-awareness" else 0  # one row of scores

    def attention(self, call: AttentionCall) -> Tensor:
        return rescaled(call, self._ratios)

    def _ratios(self, seq: SequenceCall) -> tuple[Tensor, Tensor]:
        """Ratios of the query heads ``[H]`` and of the key heads ``[G]``."""
        group = seq.query.shape[0] // seq.key.shape[0]
        by_key = self.variant == "paper"
        if "ratios" not in seq.memory:
            seq.memory["ratios"] = self._spread(self._indices(seq, group if by_key else 1))
        ratios = seq.memory["ratios"]
        return (ratios.repeat_interleave(group), ratios) if by_key else (ratios, ratios[::group])

    def _spread(self, indices: Tensor) -> Tensor:
        steps = len(indices) - 1 if self.variant == "paper" else len(indices)
        return self.min_ratio + (self.max_ratio - self.min_ratio) * indices.float() / max(steps, 1)

    def _indices(self, seq: SequenceCall, group: int) -> Tensor:
        """The step of each head on the way from the smallest to the largest ratio, int64 ``[H / group]``."""
        count = seq.query.shape[0] // group
        if self.heads == "reversed":
            return seq.arange(count).flip(0)
        order = self._outliers(seq).view(count, group).sum(-1).argsort(descending=True, stable=True)
        return order if self.variant == "released" else order.argsort()

    def _outliers(self, seq: SequenceCall) -> Tensor:
        """Number of outliers among the last query's weights, int64 ``[H]``."""
        last, count = seq.query[:, -1:], seq.key.shape[1]
        if self.variant == "paper":
            offsets = seq.arange(count)
            keys = seq.scoring.encoding(seq.key, offsets)
            scores = attention.segment_scores(last, keys, positions=offsets[-1:], scoring=seq.scoring)
        else:
            scores = attention.grouped_scores(last, seq.key, seq.scoring)
        weights = scores.softmax(-1)
        return (weights > OUTLIER / count).sum(-1)[:, 0]
