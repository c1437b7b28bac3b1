"""Log-probabilities of several continuations of one prompt, all of them after one pass over the prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragbias.binding import copied_cache
from ragbias.cache import DocumentCache
from ragbias.generation.request import Request
from ragbias.generation.reuse import entering
from ragbias.generation.scoring import continued, prefilled
from ragbias.methods import Method, NoMethod
from ragbias.methods.base import JointMethod
from ragbias.prompt import TokenisedPrompt


@dataclass(frozen=True)
class ContinuationScores:
    """What a method makes of given continuations.

    Attributes:
        next_token: log-probabilities of the token after the prompt, float32 ``[V]``.
        logprobs: natural logarithm of each continuation's probability, the sum over its tokens.
    """

    next_token: Tensor
    logprobs: list[float]


@torch.no_grad()
def teacher_forced(
    model: PreTrainedModel,
    request: Request,
    targets: Sequence[Sequence[int]],
    backend: str = "auto",
    cache: DocumentCache | None = None,
) -> ContinuationScores:
    """The probabilities with which the method would write each target after the prompt, were it to sample.

    - Of prompts that are decoded side by side: those of the scores that the method makes of all of them.
    - Of a vote: the mean of the probabilities over its orders, which is the share of votes to expect for the target if
      each order's answer is sampled. A vote over greedy answers has no probability.
    - Of a method that changes the order of the documents: the plain model's in that order.

    Args:
        targets: token ids of each continuation, see ``scoring.continuation_ids``; none is empty.
        backend: what computes the method's attention.
        cache: where documents are kept, for methods with reusable ones.

    Raises:
        NonFiniteLogitsError: the model produced NaN or infinite logits.
        MethodError, BackendError, OutOfMemoryError: as of ``DebiasedLM.generate``.
    """
    own = [_logits(model, request.method, each.tokens, targets, backend, cache) for each in request.candidates()]
    first = torch.stack([after_prompt for after_prompt, _ in own])
    return ContinuationScores(
        next_token=_mixture(_fused(request.method, first[:, None]).log_softmax(-1))[0],
        logprobs=[
            _logprob(request.method, torch.stack([of_targets[index] for _, of_targets in own]), target)
            for index, target in enumerate(targets)
        ],
    )


def _logits(
    model: PreTrainedModel,
    method: Method,
    tokens: TokenisedPrompt,
    targets: Sequence[Sequence[int]],
    backend: str,
    cache: DocumentCache | None,
) -> tuple[Tensor, list[Tensor]]:
    """Logits float32 ``[V]`` of the token after a prompt, and ``[len(target), V]`` of each target's tokens."""
    acting = NoMethod() if method.acts_on == "answers" else method
    with entering(model, acting, [tokens], [tokens.spans], backend, cache) as entered:
        first, filled = prefilled(model, tokens.ids, entered.cache)
        last = len(targets) - 1
        copies = (filled if index == last else copied_cache(model, filled) for index in range(len(targets)))
        return first, [continued(model, first, own, target) for own, target in zip(copies, targets, strict=True)]


def _fused(method: Method, logits: Tensor) -> Tensor:
    """``[prompts, T, V]`` as ``[1, T, V]`` where the method makes one score of all prompts', else unchanged."""
    if not isinstance(method, JointMethod):
        return logits
    memory: dict[str, Any] = {}
    return torch.stack([method.fused(logits[:, step], memory) for step in range(logits.shape[1])])[None]


def _mixture(logprobs: Tensor) -> Tensor:
    """The logarithm of the mean over the first dimension of probabilities."""
    return logprobs.logsumexp(0) - math.log(len(logprobs))


def _logprob(method: Method, logits: Tensor, target: Sequence[int]) -> float:
    scores = _fused(method, logits).log_softmax(-1)
    chosen = scores[:, torch.arange(len(target)), torch.tensor(list(target), device=scores.device)]
    return float(_mixture(chosen.double().sum(1)))
