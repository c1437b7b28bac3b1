"""Majority vote over document orders. Tang et al., arXiv 2310.07712, compute a central ranking instead."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from ragbias.checks import Bounds, check_whole_between
from ragbias.methods.base import VotingMethod, canonical_order


@dataclass(frozen=True)
class PermutationVote(VotingMethod):
    """Answer with several orders of the documents, and return the majority answer.

    The orders are distinct random shuffles. If only ``m`` orders are possible, and ``samples`` is larger, each order
    runs ``samples // m`` times. For example, with two documents and 5 samples, both orders run twice. Ties are broken
    by the mean log-probability per token. The shuffles start from a canonical order, so answers are order-invariant.

    Args:
        samples: maximum number of answers, 1 to 100,000.
        seed: seed of the shuffles, 32 bits.
    """

    samples: int = 5
    seed: int = 0

    name = "permutation-vote"
    invariant = True
    cost = "at most one answer for each of the samples"
    source = "Tang et al., arXiv 2310.07712"

    def __post_init__(self) -> None:
        check_whole_between("permutation-vote: samples", self.samples, Bounds(1, 100_000))
        check_whole_between("permutation-vote: seed", self.seed, Bounds(0, 2**32 - 1))

    def candidate_orders(self, documents: Sequence[Sequence[int]]) -> list[list[int]]:
        rng = random.Random(int(self.seed))
        canonical = canonical_order(documents)
        orders = math.factorial(len(canonical))
        if self.samples >= orders:
            return [list(order) for order in permutations(canonical)] * (self.samples // orders)
        shuffles: dict[tuple[int, ...], None] = {}  # a set that keeps its order
        while len(shuffles) < self.samples:
            shuffles[tuple(rng.sample(canonical, len(canonical)))] = None
        return [list(order) for order in shuffles]
