"""Log-probabilities of several continuations of one prompt, all of them after one pass over the prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.binding import attach, copied_cache
from ragbias.errors import ArgumentError
from ragbias.generation.decoding import RequireFinite
from ragbias.generation.memory import memory_told
from ragbias.generation.request import Request
from ragbias.methods import Method, NoMethod
from ragbias.methods.base import JointMethod


@dataclass(frozen=True)
class Forced:
    """What a method makes of given continuations.

    Attributes:
        next_token: log-probabilities of the token after the prompt, float32 ``[V]``.
        logprobs: natural logarithm of each continuation's probability, the sum over its tokens.
    """

    next_token: Tensor
    logprobs: list[float]


@torch.no_grad()
def forced(model: PreTrainedModel, request: Request, targets: Sequence[Sequence[int]], backend: str = "auto") -> Forced:
    """The probabilities with which the method would write each target after the prompt, were it to sample.

    - Of prompts that are decoded side by side: those of the scores that the method makes of all of them.
    - Of a vote: the mean of the probabilities over its orders, which is the share of votes to expect for the target if
      each order's answer is sampled. A vote over greedy answers has no probability.
    - Of a method that changes the order of the documents: the plain model's in that order.

    Raises:
        NonFiniteLogitsError: the model produced NaN or infinite logits.
    """
    candidates = request.candidates()
    acting = NoMethod() if request.method.asks_several else request.method
    lengths = [len(each.tokens.ids) for each in candidates]
    with (
        memory_told(lengths, model.device),
        attach(model, acting, [request.tokens.spans], private=True, backend=backend),
    ):
        prompts = [_entered(model, each.tokens.ids) for each in candidates]
        first = torch.stack([logits for logits, _ in prompts])
        return Forced(
            next_token=_mixture(_fused(request.method, first[:, None]).log_softmax(-1))[0],
            logprobs=[
                _logprob(request.method, _continued(model, prompts, target, last=index == len(targets) - 1), target)
                for index, target in enumerate(targets)
            ],
        )


def continuation_ids(tokenizer: PreTrainedTokenizerBase, before: str, continuation: str) -> list[int]:
    """The tokens of a continuation as they follow the text ``before``.

    Raises:
        ArgumentError: it has none.
    """
    head: list[int] = tokenizer(before, add_special_tokens=False)["input_ids"]
    whole: list[int] = tokenizer(before + continuation, add_special_tokens=False)["input_ids"]
    if whole[: len(head)] == head:
        ids = whole[len(head) :]
    else:  # a token straddles the border; the answer begins with one of its own, as the prompt is complete
        ids = list(tokenizer(continuation, add_special_tokens=False)["input_ids"])
    if not ids:
        raise ArgumentError(f"continuation {continuation!r} has no tokens to score")
    return ids


def _entered(model: PreTrainedModel, ids: Sequence[int]) -> tuple[Tensor, DynamicCache]:
    """Logits float32 ``[V]`` of the token after a prompt, and the prompt's cache."""
    prompt = torch.tensor([list(ids)], device=model.device)
    output = model(prompt, use_cache=True, logits_to_keep=1)
    logits = output.logits[0, 0].float()
    RequireFinite()(prompt, logits)
    return logits, output.past_key_values


def _continued(
    model: PreTrainedModel, prompts: Sequence[tuple[Tensor, DynamicCache]], target: Sequence[int], last: bool
) -> Tensor:
    """Logits float32 ``[prompts, len(target), V]`` of a target's tokens; ``last``: the caches are not needed again."""
    first = torch.stack([logits for logits, _ in prompts])[:, None]
    if len(target) == 1:
        return first
    ids = torch.tensor([list(target[:-1])], device=model.device)
    rest = []
    for _, cache in prompts:
        own = cache if last else copied_cache(model, cache)
        rest.append(model(ids, past_key_values=own, use_cache=True).logits[0].float())
    logits = torch.cat([first, torch.stack(rest)], dim=1)
    RequireFinite()(ids, logits)
    return logits


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
