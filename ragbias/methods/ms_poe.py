"""Ms-PoE, multi-scale positional encoding, Zhang et al., arXiv 2403.04797, and its released code."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ragbias import attention
from ragbias.checks import Bounds, check_between, check_choice, check_whole_between
from ragbias.errors import MethodError
from ragbias.methods.base import AttentionCall, AttentionMethod, LayerRange, SequenceCall, Tensor
from ragbias.methods.position_interpolation import RATIO, attend_with_ratios

Variant: TypeAlias = Literal["paper", "released", "ranked"]
Heads: TypeAlias = Literal["by-awareness", "entropy", "sequential", "reversed", "random"]


@dataclass(frozen=True)
class MsPoE(AttentionMethod):
    """Divide positions by a ratio per head: ``t / r_h`` in head ``h``. The prefill determines the ratios of each layer.

    The score of a head is the share of keys whose weight for the prompt's last token is above ``alpha`` times the mean.
    The head with the highest score gets ``min_ratio``. Heads with lower scores get larger ratios, in equal steps.

    Args:
        min_ratio, max_ratio: 0.001 to 1,000,000.
        layers: first and last layer, both included; ``(2, None)`` ends at the model's last layer.
        variant: ``"paper"`` is the rule above, with ratios up to ``max_ratio``. With grouped queries, each key head
            has one ratio, from the mean score of its query heads, so that relative positions are exact. ``"released"``
            is the authors' code: weights are computed without position encoding, and head ``h`` has the ratio
            ``min + (max - min) * order[h] / H``, where ``order`` lists the heads by score. Keys have the ratio of the
            first query head of their group. ``"ranked"`` is ``"released"`` with the rank of head ``h`` instead of
            ``order[h]``.
        heads: the order of the heads, smallest ratio first. ``"by-awareness"`` is the rule above. The paper also
            evaluates ``"entropy"`` (lowest entropy of the weights first), ``"sequential"`` (by index) and ``"random"``
            (drawn for each layer). ``"reversed"`` (by index, last first) is from the authors' script.
        alpha: the score of a head is the number of weights above this multiple of the mean, 0.001 to 1,000,000.
        seed: seed for ``heads="random"``, 0 to 2**31 - 1.
    """

    min_ratio: float = 1.2
    max_ratio: float = 1.8
    layers: LayerRange | None = (2, None)
    variant: Variant = "paper"
    heads: Heads = "by-awareness"
    alpha: float = 3.0
    seed: int = 0

    name = "ms-poe"
    needs_documents = False
    needs_rotary = True
    default_layers = "third to last"
    cost = "the scores of one query in the prefill; one rotation of queries and keys"
    source = "Zhang et al., arXiv 2403.04797"

    def __post_init__(self) -> None:
        check_between("ms-poe: min_ratio", self.min_ratio, RATIO)
        check_between("ms-poe: max_ratio", self.max_ratio, RATIO)
        if self.min_ratio > self.max_ratio:
            raise MethodError(f"ms-poe: min_ratio={self.min_ratio}; expected at most max_ratio={self.max_ratio}")
        check_choice("ms-poe: variant", self.variant, get_args(Variant))
        check_choice("ms-poe: heads", self.heads, get_args(Heads))
        check_between("ms-poe: alpha", self.alpha, RATIO)
        check_whole_between("ms-poe: seed", self.seed, Bounds(0, 2**31 - 1))

    def attention(self, call: AttentionCall) -> Tensor:
        return attend_with_ratios(call, self._ratios)

    def _ratios(self, seq: SequenceCall) -> tuple[Tensor, Tensor]:
        """Return the ratios of the query heads ``[H]`` and of the key heads ``[G]``."""
        group = seq.query.shape[0] // seq.key.shape[0]
        by_key = self.variant == "paper"
        if "ratios" not in seq.memory:
            indices = self._indices(seq, group if by_key else 1)
            steps = max(1, len(indices) - 1 if by_key else len(indices))
            seq.memory["ratios"] = self.min_ratio + (self.max_ratio - self.min_ratio) * indices.float() / steps
        ratios = seq.memory["ratios"]
        if by_key:
            return ratios.repeat_interleave(group), ratios
        return ratios, ratios[::group]

    def _indices(self, seq: SequenceCall, group: int) -> Tensor:
        """Return an index for each ``group`` of heads, int64 ``[H / group]``. Index 0 has the smallest ratio."""
        import torch

        count = seq.query.shape[0] // group
        if self.heads == "sequential":
            return seq.arange(count)
        if self.heads == "reversed":
            return seq.arange(count).flip(0)
        if self.heads == "random":
            drawn = random.Random(f"{self.seed} {seq.layer}").sample(range(count), count)
            return torch.tensor(drawn, device=seq.key.device)
        order = self._awareness(seq).view(count, group).sum(-1).argsort(descending=True, stable=True)
        return order if self.variant == "released" else order.argsort()

    def _awareness(self, seq: SequenceCall) -> Tensor:
        """Return the score of each head ``[H]``: the number of high weights, or the negative entropy of the weights."""
        last, count = seq.query[:, -1:], seq.key.shape[1]
        if self.variant == "paper":
            offsets = seq.arange(count)
            keys = seq.scoring.encoding(seq.key, offsets)
            scores = attention.segment_scores(last, keys, positions=offsets[-1:], scoring=seq.scoring)
        else:
            scores = attention.torch_backend.grouped_scores(last, seq.key, seq.scoring)
        weights = scores.softmax(-1)
        if self.heads == "entropy":
            return weights.xlogy(weights).sum(-1)[:, 0]
        return (weights > self.alpha / count).sum(-1)[:, 0]
