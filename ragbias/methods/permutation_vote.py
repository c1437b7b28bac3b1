"""Voting over several orders of the documents.

Source: Tang et al., Found in the Middle: Permutation Self-Consistency Improves Listwise Ranking in Large Language
Models, arXiv 2310.07712, with a majority in place of a central ranking.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ragbias.checks import Bounds, check_whole_between
from ragbias.methods.base import Method, canonical_order


@dataclass(frozen=True)
class PermutationVote(Method):
    """Answer with several shuffles of the documents; the answer that most of them give wins.

    Where several answers have the most votes, the one with the highest mean log-probability per token wins. The
    shuffles start from a canonical order, so the result does not depend on the retriever's.

    Args:
        samples: number of shuffles, 1 to 100,000; each costs one answer.
        seed: of the shuffles, of 32 bits.
    """

    samples: int = 5
    seed: int = 0

    name = "permutation-vote"
    acts_on = "answers"
    needs_documents = True
    invariant = True
    cost = "one answer for each of the samples"
    source = "Tang et al., arXiv 2310.07712"

    def __post_init__(self) -> None:
        check_whole_between("permutation-vote: samples", self.samples, Bounds(1, 100_000))
        check_whole_between("permutation-vote: seed", self.seed, Bounds(0, 2**32 - 1))

    def candidate_orders(self, documents: Sequence[Sequence[int]]) -> list[list[int]]:
        """The shuffles, as indices into ``documents`` (token ids of each)."""
        rng, canonical = random.Random(self.seed), canonical_order(documents)
        return [rng.sample(canonical, len(canonical)) for _ in range(self.samples)]
