"""Log-probabilities of several continuations after one pass over their prompt."""

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
    """Log-probabilities of given continuations.

    Attributes:
        next_token: log-probabilities of the token after the prompt, float32 ``[V]``.
        logprobs: natural logarithm of each continuation's probability, summed over its tokens.
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
    """The probability with which a method generates each target after the prompt when it samples.

    - A joint method: that of the scores fused from all its prompts.
    - A vote: the mean over its orders, which is the expected share of votes if each answer is sampled. A vote over
      greedy answers has no probability.
    - A reordering method: that of the plain model in the new order.

    Args:
        targets: token ids of each continuation, none empty, see ``scoring.continuation_ids``.
        backend: the attention backend.
        cache: for methods with reusable documents.

    Raises:
        NonFiniteLogitsError: the model produced NaN or infinite logits.
        MethodError, BackendError, OutOfMemoryError: see ``DebiasedLM.generate``.
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
    """Logits ``[prompts, T, V]``, which a joint method fuses to ``[1, T, V]``."""
    if not isinstance(method, JointMethod):
        return logits
    memory: dict[str, Any] = {}
    return torch.stack([method.fused(logits[:, step], memory) for step in range(logits.shape[1])])[None]


def _mixture(logprobs: Tensor) -> Tensor:
    """Logarithm of the mean probability over the first dimension."""
    return logprobs.logsumexp(0) - math.log(len(logprobs))


def _logprob(method: Method, logits: Tensor, target: Sequence[int]) -> float:
    scores = _fused(method, logits).log_softmax(-1)
    chosen = scores[:, torch.arange(len(target)), torch.tensor(list(target), device=scores.device)]
    return float(_mixture(chosen.double().sum(1)))
