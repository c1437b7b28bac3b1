"""Probabilities of a continuation, without generating an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragbias.binding import attach
from ragbias.checks import check_not_cancelled
from ragbias.generation.decoding import RequireFinite
from ragbias.generation.memory import memory_told
from ragbias.generation.request import Request
from ragbias.methods import AttentionMethod, Method, NoMethod
from ragbias.prompt import TokenisedPrompt


@torch.no_grad()
def logprobs_of(model: PreTrainedModel, request: Request, target: Sequence[int], backend: str = "auto") -> list[float]:
    """Log-probability (natural logarithm) of each token of ``target`` after the prompt, as they would be generated."""
    scores = continuation_logits(model, request.tokens, request.method, target, backend)
    chosen = scores.log_softmax(-1).gather(1, torch.tensor(target, device=model.device)[:, None])[:, 0]
    values: list[float] = chosen.tolist()
    return values


@torch.no_grad()
def continuation_logits(
    model: PreTrainedModel, tokens: TokenisedPrompt, method: Method, target: Sequence[int], backend: str
) -> Tensor:
    """Logits float32 ``[len(target), V]`` of the tokens after the prompt, the target's tokens being generated."""
    with _running(model, method, tokens, backend):
        ids = torch.tensor([tokens.ids], device=model.device)
        first = model(ids, use_cache=True, logits_to_keep=1)
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
        sure.append(_first_logits(model, tokens, each, backend).softmax(-1).amax().item())
    plain, other = sure
    if plain >= other:
        return NoMethod(), f"selective: the plain model is as sure of its first token ({plain:.3f}, {other:.3f})"
    return method, ""


@contextmanager
def _running(model: PreTrainedModel, method: Method, tokens: TokenisedPrompt, backend: str = "auto") -> Iterator[None]:
    """The model runs one prompt with a method."""
    with (
        memory_told([len(tokens.ids)], model.device),
        attach(model, method, [tokens.spans], private=True, backend=backend),
    ):
        yield


def _first_logits(model: PreTrainedModel, tokens: TokenisedPrompt, method: Method, backend: str) -> Tensor:
    """Logits float32 ``[1, V]`` of the token after the prompt."""
    ids = torch.tensor([tokens.ids], device=model.device)
    with _running(model, method, tokens, backend):
        logits: Tensor = model(ids, use_cache=False, logits_to_keep=1).logits[0].float()
    RequireFinite()(ids, logits)
    return logits


def kl(plain: Tensor, own: Tensor) -> float:
    """KL(plain || own) in nats, of two distributions over the next token, given as log-probabilities ``[V]``.

    Tokens that ``plain`` never writes (-inf) add nothing, and rounding errors make no negative divergence.
    """
    terms = plain.exp() * (plain - own)
    return max(0.0, float(terms.where(plain.isfinite(), 0).double().sum()))
