"""Compute log-probabilities of given continuations of a prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.binding.architectures import KV_CACHE
from ragbias.binding.hooks import copy_cache
from ragbias.errors import ArgumentError
from ragbias.generation.attaching import LoadedModel, attached_batch
from ragbias.generation.decoding import RequireFinite, suffix_likelihoods
from ragbias.generation.request import Request
from ragbias.methods import JointMethod, Method
from ragbias.models.control_tokens import encode
from ragbias.prompt import TokenisedPrompt


class ContinuationScores(NamedTuple):
    """Log-probabilities of each possible next token, float32 ``[V]``, and of each whole continuation."""

    next_token: Tensor
    logprobs: list[float]


@torch.no_grad()
def logprobs_of(loaded: LoadedModel, request: Request, target: Sequence[int]) -> list[float]:
    """Return the natural logarithm of the probability of each token of ``target`` after the prompt."""
    (scores,) = _logprobs(loaded, request, [target])
    values: list[float] = _select_tokens(scores[0], target).tolist()
    return values


@torch.no_grad()
def continuation_logits(loaded: LoadedModel, tokens: TokenisedPrompt, method: Method, target: Sequence[int]) -> Tensor:
    """Return logits float32 ``[len(target), V]`` that predict each token of ``target``."""
    (logits,), _ = _logits(loaded, method, tokens, [target])
    return logits


@torch.no_grad()
def score_continuations(loaded: LoadedModel, request: Request, targets: Sequence[Sequence[int]]) -> ContinuationScores:
    """Score each target by the log-probability with which a method would sample it after the prompt.

    For a vote, the probability is the mean over the orders, which is the expected share of votes.
    """
    scores = _logprobs(loaded, request, targets)
    logprobs = []
    for of_target, target in zip(scores, targets, strict=True):
        by_order = _select_tokens(of_target, target).double().sum(1)
        logprobs.append(float(_log_mean(by_order)))
    return ContinuationScores(_log_mean(scores[0][:, 0]), logprobs)


def _logprobs(loaded: LoadedModel, request: Request, targets: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return log-probabilities ``[orders, len(target), V]`` for each target. Only a vote has several orders."""
    parts = [_logits(loaded, part.method, part.tokens, targets) for part in request.candidates()]
    by_part = [logits for logits, _ in parts]
    by_target = [torch.stack(logits) for logits in zip(*by_part, strict=True)]
    method = request.method
    if isinstance(method, JointMethod):
        of_suffix = [likelihood for _, likelihood in parts if likelihood is not None]
        likelihoods = torch.cat(of_suffix) if of_suffix else None
        pairs = zip(by_target, targets, strict=True)
        by_target = [fuse_logits(method, likelihoods, logits, target)[None] for logits, target in pairs]
    return [logits.log_softmax(-1) for logits in by_target]


def _select_tokens(logprobs: Tensor, target: Sequence[int]) -> Tensor:
    """Select the log-probabilities ``[..., T]`` of a target's ``T`` tokens from ``logprobs`` ``[..., T, V]``."""
    return logprobs[..., torch.arange(len(target)), torch.tensor(list(target), device=logprobs.device)]


def _logits(
    loaded: LoadedModel, method: Method, tokens: TokenisedPrompt, targets: Sequence[Sequence[int]]
) -> tuple[list[Tensor], Tensor | None]:
    """Return logits float32 ``[len(target), V]`` for each target, and the log-likelihood of the prompt's suffix.

    The log-likelihood is float32 ``[1]``, or None if the method does not need it.
    """
    model = loaded.model
    with attached_batch(loaded, method, [tokens], [tokens.spans]) as start:
        likelihood = suffix_likelihoods(model, method, [tokens], start.cache)
        first, filled = prefill(model, tokens.ids, start.cache)
        logits = []
        for index, target in enumerate(targets):
            is_last = index == len(targets) - 1
            cache = filled if is_last else copy_cache(model, filled)
            logits.append(continue_prefill(model, first, cache, target))
    return logits, likelihood


def prefill(
    model: PreTrainedModel, ids: Sequence[int], cache: DynamicCache | None = None
) -> tuple[Tensor, DynamicCache]:
    """Return logits float32 ``[V]`` after a prompt, and its cache. ``cache`` may contain the prompt's beginning."""
    computed = 0 if cache is None else cache.get_seq_length()
    prompt = torch.tensor([list(ids[computed:])], device=model.device)
    output = model(prompt, use_cache=True, logits_to_keep=1, **{KV_CACHE: cache})
    logits = output.logits[0, 0].float()
    RequireFinite()(prompt, logits)
    return logits, output[KV_CACHE]


def continue_prefill(model: PreTrainedModel, first: Tensor, cache: DynamicCache, target: Sequence[int]) -> Tensor:
    """Return logits float32 ``[len(target), V]`` that predict a target after a prompt. Extend the cache.

    ``first`` and ``cache`` are the results of ``prefill``.
    """
    if len(target) == 1:
        return first[None]
    ids = torch.tensor([list(target[:-1])], device=model.device)
    later = model(ids, use_cache=True, **{KV_CACHE: cache}).logits[0].float()
    RequireFinite()(ids, later)
    return torch.cat([first[None], later])


def continuation_ids(tokenizer: PreTrainedTokenizerBase, before: str, continuation: str) -> list[int]:
    """Return the tokens of a continuation of the text ``before``. Raise ``ArgumentError`` if there are none."""
    head = encode(before, tokenizer)
    whole = encode(before + continuation, tokenizer)
    ids = whole[len(head) :]
    if whole[: len(head)] != head:  # a token spans the border of the two texts, which no generated token does
        ids = encode(continuation, tokenizer)
    if not ids:
        raise ArgumentError(f"continuation {continuation!r} has no tokens to score")
    return ids


def kl(plain: Tensor, debiased: Tensor) -> float:
    """Return KL(plain || debiased) in nats. Both arguments are log-probabilities ``[V]`` of the next token.

    Tokens with probability zero in ``plain`` are ignored. Negative rounding errors become zero.
    """
    terms = plain.exp() * (plain - debiased)
    return max(0.0, float(terms.where(plain.isfinite(), 0).double().sum()))


def fuse_logits(method: JointMethod, likelihoods: Tensor | None, logits: Tensor, target: Sequence[int]) -> Tensor:
    """Combine all prompts' logits ``[prompts, T, V]`` for the tokens of ``target``. Return logits ``[T, V]``."""
    memory: dict[str, Any] = {"likelihoods": likelihoods}
    previous = [None, *target[:-1]]
    return torch.stack([method.combine_logits(logits[:, step], memory, token) for step, token in enumerate(previous)])


def _log_mean(logprobs: Tensor) -> Tensor:
    """Return the logarithm of the mean probability over the first dimension."""
    return logprobs.logsumexp(0) - math.log(len(logprobs))
