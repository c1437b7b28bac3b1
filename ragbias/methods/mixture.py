"""Mixture of documents, based on REPLUG (Shi et al., arXiv 2301.12652) and on Merth et al., arXiv 2404.06910."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragbias.methods.base import JointMethod, Tensor, canonical_order


@dataclass(frozen=True)
class Mixture(JointMethod):
    """Run one prompt per document, and average the token probabilities of all prompts.

    ``q`` is the text after the documents, and ``a_<t`` is the answer so far. The weight of document ``d`` is the
    probability of ``q`` and ``a_<t`` after ``d``: ``w_d = p(q, a_<t | d)``, normalised over the documents. Therefore
    the probability ``p(a)`` of an answer is the exact mean of ``p(a | d)`` with the weights ``p(q | d)``. Shi et al.
    weight documents by a retriever's scores instead. Merth et al. use ``p(q | d)`` to choose documents.
    """

    name = "mixture"
    fewest_documents = 1
    invariant = True
    reusable_documents = True
    needs_likelihoods = True
    cost = "a prompt for each document, decoded as a batch"
    source = "Shi et al., arXiv 2301.12652; Merth et al., arXiv 2404.06910"

    @property
    def takes_reader(self) -> bool:
        return True

    def prompts(self, documents: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[index] for index in canonical_order(documents)]

    def combine_logits(self, logits: Tensor, memory: dict[str, Any], previous: int | None) -> Tensor:
        """Return the log-probability of each token. ``memory`` has the weights and the previous log-probabilities."""
        weights = memory["likelihoods"] if previous is None else memory["weights"] + memory["logprobs"][:, previous]
        logprobs = logits.log_softmax(-1)
        memory |= {"weights": weights, "logprobs": logprobs}
        mean: Tensor = (weights.log_softmax(0)[:, None] + logprobs).logsumexp(0)
        return mean
