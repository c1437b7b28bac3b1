"""Probabilities of one continuation of a prompt, without generating an answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.cache import DocumentCache
from ragbias.checks import check_not_cancelled
from ragbias.errors import ArgumentError
from ragbias.generation.decoding import RequireFinite
from ragbias.generation.request import Request
from ragbias.generation.reuse import entering
from ragbias.methods import AttentionMethod, Method, NoMethod
from ragbias.prompt import TokenisedPrompt


@torch.no_grad()
def logprobs_of(
    model: PreTrainedModel,
    request: Request,
    target: Sequence[int],
    backend: str = "auto",
    cache: DocumentCache | None = None,
) -> list[float]:
    """Log-probability (natural logarithm) of each token of ``target`` after the prompt, as they would be generated."""
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
    """Logits float32 ``[len(target), V]`` of the tokens after the prompt, the target's tokens being generated.

    The last one of the target is not read.
    """
    with entering(model, method, [tokens], [tokens.spans], backend, cache) as entered:
        return continued(model, *prefilled(model, tokens.ids, entered.cache), target)


def prefilled(
    model: PreTrainedModel, ids: Sequence[int], cache: DynamicCache | None = None
) -> tuple[Tensor, DynamicCache]:
    """Logits float32 ``[V]`` of the token after a prompt, and the prompt's cache; ``cache`` holds its beginning."""
    entered = 0 if cache is None else cache.get_seq_length()
    prompt = torch.tensor([list(ids[entered:])], device=model.device)
    output = model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits = output.logits[0, 0].float()
    RequireFinite()(prompt, logits)
    return logits, output.past_key_values


def continued(model: PreTrainedModel, first: Tensor, cache: DynamicCache, target: Sequence[int]) -> Tensor:
    """Logits float32 ``[len(target), V]`` of a target's tokens after a prompt; as of ``prefilled``. Fills the cache."""
    if len(target) == 1:
        return first[None]
    ids = torch.tensor([list(target[:-1])], device=model.device)
    rest = model(ids, past_key_values=cache, use_cache=True).logits[0].float()
    RequireFinite()(ids, rest)
    return torch.cat([first[None], rest])


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


@torch.no_grad()
def more_confident(
    model: PreTrainedModel,
    whole: TokenisedPrompt,
    segmented: TokenisedPrompt,
    method: AttentionMethod,
    backend: str,
    cancelled: threading.Event | None,
) -> tuple[Method, str]:
    """Of the plain model and a method, the one that gives its first token the higher probability, and why.

    Args:
        whole, segmented: the prompt as the plain model reads it, and as the method does.
    """
    sure = []
    for each, tokens in ((NoMethod(), whole), (method, segmented)):
        check_not_cancelled(cancelled)
        sure.append(continuation_logits(model, tokens, each, [0], backend).softmax(-1).amax().item())
    plain, other = sure
    if plain >= other:
        return NoMethod(), f"selective: the plain model is as sure of its first token ({plain:.3f}, {other:.3f})"
    return method, ""


def kl(plain: Tensor, own: Tensor) -> float:
    """KL(plain || own) in nats, of two distributions over the next token, given as log-probabilities ``[V]``.

    Tokens that ``plain`` never writes (-inf) add nothing, and rounding errors make no negative divergence.
    """
    terms = plain.exp() * (plain - own)
    return max(0.0, float(terms.where(plain.isfinite(), 0).double().sum()))
