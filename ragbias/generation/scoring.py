"""Log-probabilities of continuations of a prompt, by teacher forcing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.binding.hooks import copy_cache
from ragbias.cache import DocumentCache
from ragbias.errors import ArgumentError
from ragbias.generation.decoding import RequireFinite, prepared_model, suffix_likelihoods
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
    (scores,) = _logprobs(model, request, [target], backend, cache)
    values: list[float] = _chosen(scores[0], target).tolist()
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
    (logits,), _ = _logits(model, method, tokens, [target], backend, cache)
    return logits


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
    scores = _logprobs(model, request, targets, backend, cache)
    logprobs = [_mean_probability(_chosen(s, t).double().sum(1)) for s, t in zip(scores, targets, strict=True)]
    return ContinuationScores(_mean_probability(scores[0][:, 0]), [float(logprob) for logprob in logprobs])


def _logprobs(
    model: PreTrainedModel,
    request: Request,
    targets: Sequence[Sequence[int]],
    backend: str,
    cache: DocumentCache | None,
) -> list[Tensor]:
    """Return log-probabilities ``[orders, len(target), V]`` along each target. Only a vote has several orders."""
    acting = NoMethod() if request.method.acts_on == "answers" else request.method
    parts = [_logits(model, acting, part.tokens, targets, backend, cache) for part in request.candidates()]
    of_targets = [torch.stack(logits) for logits in zip(*(logits for logits, _ in parts), strict=True)]
    if isinstance(request.method, JointMethod):
        given = [likelihood for _, likelihood in parts if likelihood is not None]
        fused = partial(fused_logits, request.method, torch.cat(given) if given else None)
        of_targets = [fused(logits, target)[None] for logits, target in zip(of_targets, targets, strict=True)]
    return [logits.log_softmax(-1) for logits in of_targets]


def _chosen(logprobs: Tensor, target: Sequence[int]) -> Tensor:
    """Return the log-probabilities ``[..., T]`` of the target's tokens, of all tokens' ``[..., T, V]``."""
    return logprobs[..., torch.arange(len(target)), torch.tensor(list(target), device=logprobs.device)]


def _logits(
    model: PreTrainedModel,
    method: Method,
    tokens: TokenisedPrompt,
    targets: Sequence[Sequence[int]],
    backend: str,
    cache: DocumentCache | None,
) -> tuple[list[Tensor], Tensor | None]:
    """Return logits float32 ``[len(target), V]`` that predict each target, and the likelihood of the prompt's suffix.

    The likelihood is float32 ``[1]``, or None if the method does not need it.
    """
    with prepared_model(model, method, [tokens], [tokens.spans], backend, cache) as start:
        likelihood = suffix_likelihoods(model, method, [tokens], start.cache)
        first, filled = prefilled(model, tokens.ids, start.cache)
        last = len(targets) - 1
        copies = (filled if index == last else copy_cache(model, filled) for index in range(len(targets)))
        logits = [continued(model, first, copy, target) for copy, target in zip(copies, targets, strict=True)]
    return logits, likelihood


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


def fused_logits(method: JointMethod, likelihoods: Tensor | None, logits: Tensor, target: Sequence[int]) -> Tensor:
    """Fuse logits ``[prompts, T, V]`` that predict ``target`` to ``[T, V]``."""
    memory: dict[str, Any] = {"likelihoods": likelihoods}
    previous = [None, *target[:-1]]
    return torch.stack([method.fused(logits[:, step], memory, token) for step, token in enumerate(previous)])


def _mean_probability(logprobs: Tensor) -> Tensor:
    """Return the logarithm of the mean probability over the first dimension."""
    return logprobs.logsumexp(0) - math.log(len(logprobs))
