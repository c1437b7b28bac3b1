"""Log-probabilities of a given continuation of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.cache import DocumentCache
from ragbias.errors import ArgumentError
from ragbias.generation.decoding import RequireFinite
from ragbias.generation.request import Request
from ragbias.generation.reuse import entering
from ragbias.methods import Method
from ragbias.prompt import TokenisedPrompt


@torch.no_grad()
def logprobs_of(
    model: PreTrainedModel,
    request: Request,
    target: Sequence[int],
    backend: str = "auto",
    cache: DocumentCache | None = None,
) -> list[float]:
    """Natural logarithm of the probability of each token of ``target``, generated after the prompt."""
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
    """Logits float32 ``[len(target), V]`` that predict each token of ``target``; its last token is not read."""
    with entering(model, method, [tokens], [tokens.spans], backend, cache) as entered:
        return continued(model, *prefilled(model, tokens.ids, entered.cache), target)


def prefilled(
    model: PreTrainedModel, ids: Sequence[int], cache: DynamicCache | None = None
) -> tuple[Tensor, DynamicCache]:
    """Logits float32 ``[V]`` of the token after a prompt, and the prompt's cache; ``cache`` may hold its beginning."""
    entered = 0 if cache is None else cache.get_seq_length()
    prompt = torch.tensor([list(ids[entered:])], device=model.device)
    output = model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits = output.logits[0, 0].float()
    RequireFinite()(prompt, logits)
    return logits, output.past_key_values


def continued(model: PreTrainedModel, first: Tensor, cache: DynamicCache, target: Sequence[int]) -> Tensor:
    """Logits float32 ``[len(target), V]`` that predict a target, from the results of ``prefilled``; fills the cache."""
    if len(target) == 1:
        return first[None]
    ids = torch.tensor([list(target[:-1])], device=model.device)
    rest = model(ids, past_key_values=cache, use_cache=True).logits[0].float()
    RequireFinite()(ids, rest)
    return torch.cat([first[None], rest])


def continuation_ids(tokenizer: PreTrainedTokenizerBase, before: str, continuation: str) -> list[int]:
    """The tokens of a continuation after the text ``before``; an ``ArgumentError`` if it has none."""
    head: list[int] = tokenizer(before, add_special_tokens=False)["input_ids"]
    whole: list[int] = tokenizer(before + continuation, add_special_tokens=False)["input_ids"]
    if whole[: len(head)] == head:
        ids = whole[len(head) :]
    else:  # a token straddles the border, but a generated answer begins with a new token
        ids = list(tokenizer(continuation, add_special_tokens=False)["input_ids"])
    if not ids:
        raise ArgumentError(f"continuation {continuation!r} has no tokens to score")
    return ids


def kl(plain: Tensor, own: Tensor) -> float:
    """KL(plain || own) in nats, of two distributions over the next token, given as log-probabilities ``[V]``.

    Tokens with probability zero in ``plain`` add nothing; negative rounding errors become zero.
    """
    terms = plain.exp() * (plain - own)
    return max(0.0, float(terms.where(plain.isfinite(), 0).double().sum()))
