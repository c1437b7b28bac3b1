"""Log-probabilities of continuations of a prompt, by teacher forcing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.binding.hooks import copied_cache
from ragbias.cache import DocumentCache
from ragbias.errors import ArgumentError
from ragbias.generation.attached import prepared_model
from ragbias.generation.decoding import RequireFinite
from ragbias.generation.request import Request
from ragbias.methods import JointMethod, Method, NoMethod
from ragbias.models.control_tokens import encode
from ragbias.prompt import TokenisedPrompt


class ContinuationScores(NamedTuple):
    """Log-probabilities of the token after the prompt, float32 ``[V]``, and of each whole continuation."""

    next_token: Tensor
    logprobs: list[float]


@torch.no_grad()
def logprobs_of(
    model: PreTrainedModel,
    request: Request,
    target: Sequence[int],
    backend: str = "auto",
    cache: DocumentCache | None = None,
) -> list[float]:
    """Return the natural logarithm of the probability of each token of ``target`` after the prompt."""
    scores = continuation_logits(model, request.tokens, request.method, target, backend, cache)
    chosen = scores.log_softmax(-1).gather(1, torch.tensor(target, device=model.device)[:, None])[:, 0]
    values: list[float] = chosen.tolist()
    return values


@torch.no_grad()
def continuation_logits(
    model: PreTrainedModel,
    tokens: TokenisedPrompt,
    method: Method,
    target: Sequence[int],
    backend: str,
    cache: DocumentCache | None = None,
) -> Tensor:
    """Return logits float32 ``[len(target), V]`` that predict each token of ``target``."""
    return _logits(model, method, tokens, [target], backend, cache)[1][0]


@torch.no_grad()
def teacher_forced(
    model: PreTrainedModel,
    request: Request,
    targets: Sequence[Sequence[int]],
    backend: str = "auto",
    cache: DocumentCache | None = None,
) -> ContinuationScores:
    """Return the log-probability of each target after the prompt, if the method samples.

    For a vote, the probability is the mean over the orders, which is the expected share of votes.
    """
    acting = NoMethod() if request.method.acts_on == "answers" else request.method
    logits = [_logits(model, acting, part.tokens, targets, backend, cache) for part in request.candidates()]
    first = torch.stack([after_prompt for after_prompt, _ in logits])
    logprobs = []
    for index, target in enumerate(targets):
        scores = _fused(request.method, torch.stack([of_targets[index] for _, of_targets in logits])).log_softmax(-1)
        chosen = scores[:, torch.arange(len(target)), torch.tensor(list(target), device=scores.device)]
        logprobs.append(float(_mixture(chosen.double().sum(1))))
    return ContinuationScores(_mixture(_fused(request.method, first[:, None]).log_softmax(-1))[0], logprobs)


def _logits(
    model: PreTrainedModel,
    method: Method,
    tokens: TokenisedPrompt,
    targets: Sequence[Sequence[int]],
    backend: str,
    cache: DocumentCache | None,
) -> tuple[Tensor, list[Tensor]]:
    """Return logits float32 ``[V]`` of the token after a prompt, and ``[len(target), V]`` that predict each target."""
    with prepared_model(model, method, [tokens], [tokens.spans], backend, cache) as start:
        first, filled = prefilled(model, tokens.ids, start.cache)
        last = len(targets) - 1
        copies = (filled if index == last else copied_cache(model, filled) for index in range(len(targets)))
        return first, [continued(model, first, copy, target) for copy, target in zip(copies, targets, strict=True)]


def prefilled(
    model: PreTrainedModel, ids: Sequence[int], cache: DynamicCache | None = None
) -> tuple[Tensor, DynamicCache]:
    """Return logits float32 ``[V]`` of the token after a prompt, and its cache. ``cache`` may contain the beginning."""
    computed = 0 if cache is None else cache.get_seq_length()
    prompt = torch.tensor([list(ids[computed:])], device=model.device)
    output = model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits = output.logits[0, 0].float()
    RequireFinite()(prompt, logits)
    return logits, output.past_key_values


def continued(model: PreTrainedModel, first: Tensor, cache: DynamicCache, target: Sequence[int]) -> Tensor:
    """Return logits float32 ``[len(target), V]`` that predict a target after ``prefilled``. Extends the cache."""
    if len(target) == 1:
        return first[None]
    ids = torch.tensor([list(target[:-1])], device=model.device)
    later = model(ids, past_key_values=cache, use_cache=True).logits[0].float()
    RequireFinite()(ids, later)
    return torch.cat([first[None], later])


def continuation_ids(tokenizer: PreTrainedTokenizerBase, before: str, continuation: str) -> list[int]:
    """Return the tokens of a continuation after the text ``before``. Raise ``ArgumentError`` if it has none."""
    head, whole = encode(before, tokenizer), encode(before + continuation, tokenizer)
    # no token crosses the border, as in a generated answer
    ids = whole[len(head) :] if whole[: len(head)] == head else encode(continuation, tokenizer)
    if not ids:
        raise ArgumentError(f"continuation {continuation!r} has no tokens to score")
    return ids


def kl(plain: Tensor, debiased: Tensor) -> float:
    """Return KL(plain || debiased) in nats of two next-token distributions, given as log-probabilities ``[V]``.

    Tokens with probability zero in ``plain`` are ignored. Negative rounding errors become zero.
    """
    terms = plain.exp() * (plain - debiased)
    return max(0.0, float(terms.where(plain.isfinite(), 0).double().sum()))


def _fused(method: Method, logits: Tensor) -> Tensor:
    """Fuse logits ``[prompts, T, V]`` to ``[1, T, V]`` with a joint method. The identity for other methods."""
    if not isinstance(method, JointMethod):
        return logits
    memory: dict[str, Any] = {}
    return torch.stack([method.fused(logits[:, step], memory) for step in range(logits.shape[1])])[None]


def _mixture(logprobs: Tensor) -> Tensor:
    """Return the logarithm of the mean probability over the first dimension."""
    return logprobs.logsumexp(0) - math.log(len(logprobs))
