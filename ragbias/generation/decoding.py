"""Logits processors and stopping criteria for ``model.generate``, and the conversion of tokens to text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ragbias.errors import NonFiniteLogitsError
from ragbias.generation.arguments import GenerationSettings
from ragbias.generation.report import Generation
from ragbias.methods import JointMethod, Method

CONTEXT = 4  # number of preceding tokens that can change the text of a token
GREEDY = 1e-6  # lower temperatures would overflow the logits; their samples are the argmax


class RequireFinite(LogitsProcessor):
    """Raise an error for NaN and +inf. Other processors use -inf to forbid tokens, so it is allowed."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not bool((scores < torch.inf).all()):
            raise NonFiniteLogitsError(
                f"the model produced NaN or infinite logits at token {input_ids.shape[1]}; "
                "check the weights and the dtype (float16 overflows easily; try bfloat16 or float32)"
            )
        return scores


class TokenLogprobs(LogitsProcessor):
    """Record the log-probability of each token, before temperature, ``top_k`` and ``top_p``."""

    def __init__(self) -> None:
        self._waiting: Tensor | None = None  # [batch, vocabulary], for the next token
        self._chosen: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._take(input_ids)
        self._waiting = scores.float().log_softmax(-1)
        return scores

    def by_sequence(self, output: Tensor) -> list[list[float]]:
        """Return the log-probabilities of the new tokens in ``output`` ``[batch, length]``, prompts and answers."""
        self._take(output)
        chosen: list[list[float]] = torch.stack(self._chosen, dim=1).tolist()
        return chosen

    def _take(self, ids: Tensor) -> None:
        if self._waiting is not None:
            self._chosen.append(self._waiting.gather(1, ids[:, -1:])[:, 0])
            self._waiting = None


class GumbelNoise(LogitsProcessor):
    """Sample as the argmax of noisy logits, with one generator per sequence, so samples do not depend on the batch."""

    def __init__(self, seed: int | None, generators: int, device: torch.device) -> None:
        self._generators = [torch.Generator(device) for _ in range(generators)]
        for generator in self._generators:
            generator.manual_seed(generator.seed() if seed is None else seed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        noise = [torch.empty_like(scores[0]).exponential_(generator=generator) for generator in self._generators]
        return scores - torch.stack(noise).log()


class FuseLogits(LogitsProcessor):
    """Replace the logits ``[prompts, V]`` of all sequences by the fused scores ``[V]`` of a joint method."""

    def __init__(self, method: JointMethod, likelihoods: Tensor | None) -> None:
        self._method = method
        self._memory: dict[str, Any] = {"likelihoods": likelihoods}
        self._is_first = True

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        previous = None if self._is_first else int(input_ids[0, -1])
        self._is_first = False
        return self._method.fused(scores.float(), self._memory, previous).to(scores.dtype).expand_as(scores)


def processors(
    settings: GenerationSettings,
    method: Method,
    recorder: TokenLogprobs | None,
    batch: int,
    device: torch.device,
    likelihoods: Tensor | None,
) -> LogitsProcessorList:
    """Return processors that check, fuse, record and sample logits. ``generate`` itself stays greedy.

    For ``likelihoods``, see ``JointMethod.fused``.
    """
    chain = LogitsProcessorList()
    if isinstance(method, JointMethod):
        chain.append(FuseLogits(method, likelihoods))
        batch = 1  # all prompts continue with the same token, so they share the noise
    chain.append(RequireFinite())
    if recorder:
        chain.append(recorder)
    if settings.temperature is not None and settings.temperature >= GREEDY:
        chain.append(TemperatureLogitsWarper(float(settings.temperature)))
        if settings.top_k is not None:
            chain.append(TopKLogitsWarper(settings.top_k))
        if settings.top_p is not None and settings.top_p < 1:
            chain.append(TopPLogitsWarper(settings.top_p))
        chain.append(GumbelNoise(settings.seed, batch, device))
    return chain


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], keep_special: Sequence[str] = ()) -> str:
    """Decode token ids. Remove special tokens, except those in ``keep_special``."""
    added = tokenizer.added_tokens_decoder if keep_special else {}  # slow for large vocabularies
    special = {id: token.content for id, token in added.items() if token.special}
    removed = {id for id, content in special.items() if content not in keep_special}
    if len(removed) == len(special):
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))
    return str(tokenizer.decode([id for id in ids if id not in removed], skip_special_tokens=False))


def trimmed(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return the text before the first stop string, and whether there was one."""
    ends = [index for index in (text.find(word) for word in stop) if index >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def safe_length(text: str, stop: Sequence[str]) -> int:
    """Return the length of a partial text without an incomplete character or stop string at its end."""
    safe = len(text.rstrip("\ufffd"))
    for word in stop:
        held = next((size for size in range(min(len(word), len(text)), 0, -1) if text.endswith(word[:size])), 0)
        safe = min(safe, len(text) - held)
    return safe


@dataclass
class StoppingWatch(StoppingCriteria):
    """End sequences at stop strings, EOS and cancellation. ``on_text`` receives the final part of the first text."""

    width: int  # number of columns of the prompts
    decode: Callable[[Sequence[int]], str]
    stop: Sequence[str]
    eos: Sequence[int]
    cancelled: Sequence[Sequence[threading.Event]]  # events that cancel each sequence
    on_text: Callable[[str], None] | None
    lengths: dict[int, int] = field(default_factory=dict)  # number of new tokens of each ended sequence, by index

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
        for index, ids in enumerate(input_ids[:, self.width :].tolist()):
            if index in self.lengths:
                continue
            on_text, stopped = self.on_text if index == 0 else None, False
            if on_text or self.stop:
                text, stopped = trimmed(self.decode(ids), self.stop)
                if on_text:
                    on_text(text[: safe_length(text, self.stop)])
            if stopped or ids[-1] in self.eos:
                self.lengths[index] = len(ids)
        cancelled = [any(event.is_set() for event in events) for events in self.cancelled]
        ended = [index in self.lengths or is_cancelled for index, is_cancelled in enumerate(cancelled)]
        return torch.tensor(ended, device=input_ids.device)


def openai_logprobs(
    generation: Generation, tokenizer: PreTrainedTokenizerBase, keep_special: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return ``{"content": [{"token", "bytes", "logprob", "top_logprobs": []}, ...]}`` for the tokens of an answer.

    Joined, the tokens give the text; the last one may extend into the stop string. If a character has several tokens,
    it belongs to the last of them.
    """
    assert generation.logprobs is not None
    content: list[dict[str, Any]] = []
    ids, length = generation.token_ids, 0
    begin = 0  # first token of an incomplete character
    for index, logprob in enumerate(generation.logprobs):
        if generation.finish_reason == "stop" and length >= len(generation.text):
            break
        start = max(0, begin - CONTEXT)
        before = decoded(tokenizer, ids[start:begin], keep_special)
        text = decoded(tokenizer, ids[start : index + 1], keep_special)[len(before) :]
        if text.endswith("\ufffd") and index + 1 < len(ids):
            text = ""
        else:
            begin = index + 1
        length += len(text)
        content.append(openai_token(text, logprob))
    return {"content": content}


def openai_token(text: str, logprob: float) -> dict[str, Any]:
    """Convert a token to OpenAI's format, without alternatives."""
    return {"token": text, "bytes": list(text.encode()), "logprob": logprob, "top_logprobs": []}
