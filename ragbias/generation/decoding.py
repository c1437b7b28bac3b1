"""Logit checks, sampling and stopping, as processors and criteria of ``model.generate``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ragbias.errors import NonFiniteLogitsError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


GREEDY = 1e-6  # temperatures below make logits overflow, and sample nothing but the argmax


class RequireFinite(LogitsProcessor):
    """Refuse NaN and +inf; -inf is what other processors write to forbid a token."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not bool((scores < torch.inf).all()):
            raise NonFiniteLogitsError(
                f"the model produced NaN or infinite logits at token {input_ids.shape[1]}; "
                "check the weights and the dtype (float16 overflows easily; try bfloat16 or float32)"
            )
        return scores


class TokenLogprobs(LogitsProcessor):
    """Notes the log-probability of each token that is chosen, as the logits come in; it goes before what samples."""

    def __init__(self) -> None:
        self._waiting: Tensor | None = None  # [batch, vocabulary], of the token that is being chosen
        self._chosen: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._take(input_ids)
        self._waiting = scores.float().log_softmax(-1)
        return scores

    def by_sequence(self, output: Tensor) -> list[list[float]]:
        """Natural logarithms, float32, of each sequence's new tokens.

        Args:
            output: prompt and answer ``[batch, length]``, as ``generate`` returned them.
        """
        self._take(output)
        chosen: list[list[float]] = torch.stack(self._chosen, dim=1).tolist()
        return chosen

    def _take(self, ids: Tensor) -> None:
        if self._waiting is not None:
            self._chosen.append(self._waiting.gather(1, ids[:, -1:])[:, 0])
            self._waiting = None


class GumbelNoise(LogitsProcessor):
    """Sampling as the argmax of noisy logits, from a generator of each sequence's own.

    The global generator is left alone, so requests with a seed give the same text whatever runs beside them.
    """

    def __init__(self, seed: int | None, batch: int, device: torch.device) -> None:
        self._generators = [torch.Generator(device) for _ in range(batch)]
        for generator in self._generators:
            if seed is None:
                generator.seed()
            else:
                generator.manual_seed(seed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        pairs = zip(scores, self._generators, strict=True)
        noise = [torch.empty_like(logits).exponential_(generator=own) for logits, own in pairs]
        return scores - torch.stack(noise).log()


def processors(
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    batch: int,
    device: torch.device,
) -> LogitsProcessorList:
    """The chain that turns the argmax of ``generate`` into the sampling asked for.

    No temperature is greedy, and so is one below ``GREEDY``.
    """
    chain = LogitsProcessorList([RequireFinite()])
    if temperature is not None and temperature >= GREEDY:
        chain.append(TemperatureLogitsWarper(float(temperature)))
        if top_k is not None:
            chain.append(TopKLogitsWarper(top_k))
        if top_p is not None and top_p < 1:
            chain.append(TopPLogitsWarper(top_p))
        chain.append(GumbelNoise(seed, batch, device))
    return chain


def stop_strings(stop: Sequence[str] | str | None) -> list[str]:
    """The stop strings as a list."""
    return [stop] if isinstance(stop, str) else list(stop or [])


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], keep_special: Sequence[str] = ()) -> str:
    """The text of token ids without special tokens, but with those named in ``keep_special``."""
    added = tokenizer.added_tokens_decoder if keep_special else {}  # made anew each time: Gemma's has 6,000 tokens
    special = {id for id, token in added.items() if token.special}
    kept = {id for id in special if added[id].content in keep_special}
    if not kept:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))
    return str(tokenizer.decode([id for id in ids if id not in special - kept], skip_special_tokens=False))


def trimmed(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there was one."""
    found = [index for index in (text.find(word) for word in stop) if index >= 0]
    return (text[: min(found)], True) if found else (text, False)


def safe_length(text: str, stop: Sequence[str]) -> int:
    """How much of a growing text can be shown: no half character, and no beginning of a stop string at its end."""
    safe = len(text.rstrip("\ufffd"))
    for word in stop:
        for size in range(min(len(word), len(text)), 0, -1):
            if text.endswith(word[:size]):
                safe = min(safe, len(text) - size)
                break
    return safe


class StoppingWatch(StoppingCriteria):
    """Sees every new token: ends sequences at a stop string, EOS or when cancelled, and tells a listener.

    Args:
        width: columns of the prompt.
        decode: token ids to text.
        cancelled: for each sequence, events of which one ends it.
        on_tokens: called with the first sequence's new ids after each step.

    Attributes:
        lengths: number of new tokens by sequence, up to and with the one that ended it; absent while it goes on.
    """

    def __init__(
        self,
        width: int,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str],
        eos: Sequence[int],
        cancelled: Sequence[Sequence[threading.Event]],
        on_tokens: Callable[[list[int]], None] | None,
    ) -> None:
        self.lengths: dict[int, int] = {}
        self._width, self._decode, self._stop, self._eos = width, decode, stop, set(eos)
        self._cancelled, self._on_tokens = cancelled, on_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
        new = input_ids[:, self._width :].tolist()
        if self._on_tokens is not None:
            self._on_tokens(new[0])
        for index, ids in enumerate(new):
            if index not in self.lengths and (ids[-1] in self._eos or self._stops(ids)):
                self.lengths[index] = len(ids)
        left = [any(event.is_set() for event in own) for own in self._cancelled]
        done = [index in self.lengths or left[index] for index in range(len(new))]
        return torch.tensor(done, device=input_ids.device)

    def _stops(self, ids: list[int]) -> bool:
        return bool(self._stop) and trimmed(self._decode(ids), self._stop)[1]
