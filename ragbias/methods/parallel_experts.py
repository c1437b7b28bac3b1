"""Parallel experts (PCED), Corallo and Papotti, arXiv 2601.08670, and its released code, ``langchain-pced``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ragbias.checks import Bounds, check_between, check_choice
from ragbias.errors import MethodError
from ragbias.methods.base import JointMethod, Tensor, canonical_order

LEAST = 1e-9  # lower bound of probabilities in the divergence, as in the released code


@dataclass(frozen=True)
class ParallelExperts(JointMethod):
    """Run one prompt per document, called an expert, and take each token from the expert with the highest score.

    Expert ``k`` has logits ``s_k``. The amateur, a prompt without documents, has logits ``s_0``. The expert's scores
    are ``(1 + b_k) s_k - b_k s_0 + g log r_k``. The contrast ``b_k`` is the Jensen-Shannon divergence between expert
    and amateur at the first token. ``r_k`` is the prior relevance of the document, and ``g`` is the weight of this
    prior. The token with the highest score of all experts is appended to all prompts. Sampling is our addition: a
    token's logit is its highest score over the experts.

    Args:
        contrast: ``b_k`` for all experts, 0 to 100; None uses the divergence.
        prior: ``r_k`` > 0, the relevance of the document at each position; None if all are equal. With a prior, the
            method is not order-invariant.
        gamma: ``g``, the weight of the prior, 0 to 100.
        variant: ``"paper"`` uses one ``b_k`` per expert. ``"released"`` is the authors' code. It uses one ``b`` per
            expert and vocabulary token. The divergence is a sum over the vocabulary, and ``b`` is the token's term.
    """

    contrast: float | None = None
    prior: Sequence[float] | None = None
    gamma: float = 1.0
    variant: Literal["paper", "released"] = "paper"

    name = "pced"
    fewest_documents = 1
    invariant = True
    reusable_documents = True
    cost = "a prompt for each document and one without, decoded as a batch"
    source = "Corallo and Papotti, arXiv 2601.08670"

    def __post_init__(self) -> None:
        if self.contrast is not None:
            check_between("pced: contrast", self.contrast, Bounds(0, 100))
        check_between("pced: gamma", self.gamma, Bounds(0, 100))
        check_choice("pced: variant", self.variant, ("paper", "released"))
        if self.prior is None:
            return
        if not isinstance(self.prior, (list, tuple)):
            raise MethodError(f"pced: prior={self.prior!r}; expected a list with a number for each document, or None")
        for index, value in enumerate(self.prior):
            check_between(f"pced: prior of document {index}", value, Bounds(1e-12, 10**12))
        object.__setattr__(self, "prior", tuple(self.prior))
        object.__setattr__(self, "invariant", False)  # of this instance; the class has the default

    def prompts(self, documents: Sequence[Sequence[int]]) -> list[list[int]]:
        if self.prior is None:
            order = canonical_order(documents)
        elif len(self.prior) == len(documents):
            order = list(range(len(documents)))
        else:
            raise MethodError(
                f"pced: prior has {len(self.prior)} numbers for {len(documents)} documents; expected one for each"
            )
        return [[], *([index] for index in order)]

    def combine_logits(self, logits: Tensor, memory: dict[str, Any], previous: int | None) -> Tensor:
        """Return each token's best expert score. ``logits[0]`` is the amateur. ``memory`` has ``b`` and the prior."""
        amateur, experts = logits[:1], logits[1:]
        if previous is None:
            memory["contrast"] = self._divergence(experts, amateur) if self.contrast is None else self.contrast
            if self.prior is not None:
                memory["prior"] = self.gamma * logits.new_tensor(self.prior).log()[:, None]
        contrast = memory["contrast"]
        scores = (1 + contrast) * experts - contrast * amateur
        if self.prior is not None:
            scores = scores + memory["prior"]
        forbidden = experts.isneginf() | amateur.isneginf()  # the difference of two infinities is NaN
        best: Tensor = scores.masked_fill(forbidden, -math.inf).amax(0)
        return best

    def _divergence(self, experts: Tensor, amateur: Tensor) -> Tensor:
        """Return ``b`` for each expert, float32 ``[n, 1]``, or for each expert and token, ``[n, V]``."""
        p, q = amateur.softmax(-1).clamp_min(LEAST), experts.softmax(-1).clamp_min(LEAST)
        log_mean = ((p + q) / 2).log()
        terms = (p * (p.log() - log_mean) + q * (q.log() - log_mean)) / 2
        if self.variant == "paper":
            terms = terms.sum(-1, keepdim=True)
        return terms.clamp(0, 1)
