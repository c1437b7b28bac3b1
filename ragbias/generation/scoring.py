"""Probabilities of a continuation, without generating an answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragbias.cache import DocumentCache
from ragbias.checks import check_not_cancelled
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

    The last token of the target is not read.
    """
    with entering(model, method, [tokens], [tokens.spans], backend, cache) as entered:
        ids = torch.tensor([tokens.ids[entered.width :]], device=model.device)
        first = model(ids, past_key_values=entered.cache, use_cache=True, logits_to_keep=1)
        logits = [first.logits[0]]
        if len(target) > 1:
            rest = torch.tensor([target[:-1]], device=model.device)
            logits.append(model(rest, past_key_values=first.past_key_values, use_cache=True).logits[0])
    scores = torch.cat(logits).float()
    RequireFinite()(ids, scores)
    return scores


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
