"""The steps of decoding a batch: pad prompts, process logits, stop sequences, and convert tokens to text."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ragbias.binding.architectures import KV_CACHE
from ragbias.errors import NonFiniteLogitsError, OutOfMemoryError, find_memory_error, first_line
from ragbias.generation.arguments import GenerationSettings
from ragbias.generation.request import Generation
from ragbias.methods import JointMethod, Method
from ragbias.prompt import Span, TokenisedPrompt

CONTEXT = 4  # number of preceding tokens that can change the text of a token
PIECE = 16  # number of suffix tokens whose logits are computed together


def padded(
    prompts: Sequence[TokenisedPrompt], pad_token: int, device: torch.device
) -> tuple[Tensor, Tensor, list[list[Span]]]:
    """Return left-padded ids and mask, int64 ``[batch, width]``, and the spans of each prompt, shifted by padding."""
    width = max(len(prompt.ids) for prompt in prompts)
    pads = [width - len(prompt.ids) for prompt in prompts]
    ids = [[pad_token] * pad + prompt.ids for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * (width - pad) for pad in pads]
    spans = [[(b + pad, e + pad) for b, e in prompt.spans] for pad, prompt in zip(pads, prompts, strict=True)]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device), spans


@contextmanager
def memory_errors(lengths: Sequence[int], device: torch.device) -> Iterator[None]:
    """Convert errors for lack of memory to ``OutOfMemoryError``. ``lengths`` are the token counts of the prompts."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not find_memory_error(error):
            raise
        raise OutOfMemoryError(
            f"no memory left on {device} for {len(lengths)} prompts of up to {max(lengths)} tokens "
            f"({first_line(error)}); make batch_size smaller, retrieve fewer or shorter documents, or load the model "
            "in a smaller dtype"
        ) from error


@torch.no_grad()
def suffix_likelihoods(
    model: PreTrainedModel, method: Method, prompts: Sequence[TokenisedPrompt], cache: DynamicCache | None
) -> Tensor | None:
    """Return the log-probability of each prompt's suffix, excluding the first token: float32 ``[prompts]``.

    Return None for methods that do not need likelihoods. All prompts have the same suffix. ``cache`` contains the
    prompts' documents. This function adds all tokens of the suffix except the last one to ``cache``.
    """
    if not (isinstance(method, JointMethod) and method.needs_likelihoods):
        return None
    suffix = torch.tensor(prompts[0].suffix, device=model.device)
    if cache is None:
        ids, mask, _ = padded(prompts, 0, model.device)
        logits = model(ids, attention_mask=mask, use_cache=False, logits_to_keep=len(suffix)).logits
        return sequence_logprobs(logits[:, :-1], suffix[1:])
    likelihoods = torch.zeros(len(prompts), device=model.device)
    for begin in range(0, len(suffix) - 1, PIECE):
        piece = suffix[begin : begin + PIECE + 1]
        logits = model(piece[:-1].expand(len(prompts), -1), use_cache=True, **{KV_CACHE: cache}).logits
        likelihoods += sequence_logprobs(logits, piece[1:])
    return likelihoods


def sequence_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probability ``[prompts]`` of ``ids`` ``[T]`` under logits ``[prompts, T, V]``."""
    logits = logits.float()
    chosen = logits.gather(2, ids.expand(len(logits), -1)[..., None])[..., 0]
    return (chosen - logits.logsumexp(2)).sum(1)


class RequireFinite(LogitsProcessor):
    """Raise an error for NaN and +inf. A logit of -inf is valid, and forbids a token."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not bool((scores < torch.inf).all()):
            raise NonFiniteLogitsError(
                f"the model produced NaN or infinite logits at token {input_ids.shape[1]}; check the weights, "
                "the dtype (float16 overflows easily; try bfloat16 or float32) and repetition_penalty"
            )
        return scores


class TokenLogprobs(LogitsProcessor):
    """Record the log-probability of each token, before temperature, ``top_k`` and ``top_p``."""

    def __init__(self) -> None:
        self._waiting: Tensor | None = None  # [batch, vocabulary], for the next token
        self._chosen: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._record_last_token(input_ids)
        self._waiting = scores.float().log_softmax(-1)
        return scores

    def by_sequence(self, output: Tensor) -> list[list[float]]:
        """Return the log-probabilities of the new tokens at the end of the sequences ``output`` ``[batch, length]``."""
        self._record_last_token(output)
        chosen: list[list[float]] = torch.stack(self._chosen, dim=1).tolist()
        return chosen

    def _record_last_token(self, ids: Tensor) -> None:
        if self._waiting is not None:
            self._chosen.append(self._waiting.gather(1, ids[:, -1:])[:, 0])
            self._waiting = None


class GumbelNoise(LogitsProcessor):
    """Add Gumbel noise to logits, so that their argmax is a sample. Each sequence has its own random generator."""

    def __init__(self, seed: int | None, generators: int, device: torch.device) -> None:
        self._generators = [torch.Generator(device) for _ in range(generators)]
        for generator in self._generators:
            generator.manual_seed(generator.seed() if seed is None else seed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        noise = [torch.empty_like(scores[0]).exponential_(generator=generator) for generator in self._generators]
        return scores - torch.stack(noise).log()


class FuseLogits(LogitsProcessor):
    """Replace the logits ``[prompts, V]`` of all prompts by the scores ``[V]`` that a ``JointMethod`` computes."""

    def __init__(self, method: JointMethod, likelihoods: Tensor | None) -> None:
        self._method = method
        self._memory: dict[str, Any] = {"likelihoods": likelihoods}
        self._is_first = True

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        previous = None if self._is_first else int(input_ids[0, -1])
        self._is_first = False
        fused = self._method.combine_logits(scores.float(), self._memory, previous)
        return fused.to(scores.dtype).expand_as(scores)


def processors(
    settings: GenerationSettings,
    method: Method,
    recorder: TokenLogprobs | None,
    batch: int,
    device: torch.device,
    likelihoods: Tensor | None,
) -> LogitsProcessorList:
    """Return the processors that fuse, check and record logits, and add noise for sampling.

    ``generate`` is greedy: it takes the token with the highest logit after the noise. For ``likelihoods``, see
    ``suffix_likelihoods``.
    """
    chain = LogitsProcessorList()
    if isinstance(method, JointMethod):
        chain.append(FuseLogits(method, likelihoods))
        batch = 1  # all prompts continue with the same token, so they share the noise
    chain.append(RequireFinite())
    if recorder:
        chain.append(recorder)
    if settings.temperature is not None and not settings.is_greedy:
        chain.append(TemperatureLogitsWarper(float(settings.temperature)))
        if settings.top_k is not None:
            chain.append(TopKLogitsWarper(settings.top_k))
        if settings.top_p is not None and settings.top_p < 1:
            chain.append(TopPLogitsWarper(settings.top_p))
        chain.append(GumbelNoise(settings.seed, batch, device))
    return chain


def allow_only(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Callable[[int, Tensor], list[int]]:
    """Return a ``prefix_allowed_tokens_fn`` with which a model can generate only one of the texts."""
    following: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)  # the next tokens, by beginning of a text
    for text in texts:
        tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        for length, token in enumerate(tokens):
            following[tuple(tokens[:length])].add(token)
    longest = max(map(len, following))

    def allowed(_index: int, ids: Tensor) -> list[int]:
        end = tuple(ids[-longest:].tolist())
        fitting = [beginning for beginning in following if end[len(end) - len(beginning) :] == beginning]
        return list(following[max(fitting, key=len)])

    return allowed


def decode_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], keep_special: Sequence[str] = ()) -> str:
    """Decode token ids. Remove special tokens, except those in ``keep_special``."""
    added = tokenizer.added_tokens_decoder if keep_special else {}  # this property is slow for large vocabularies
    special = {id: token.content for id, token in added.items() if token.special}
    removed = {id for id, content in special.items() if content not in keep_special}
    if len(removed) == len(special):
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))
    return str(tokenizer.decode([id for id in ids if id not in removed], skip_special_tokens=False))


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return the text before the first stop string, and whether the text contains a stop string."""
    ends = [index for index in (text.find(word) for word in stop) if index >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def safe_length(text: str, stop: Sequence[str]) -> int:
    """Return the length of a partial text, excluding an incomplete character or stop string at its end."""
    safe = len(text.rstrip("\ufffd"))
    for word in stop:
        overlap = next((size for size in range(min(len(word), len(text)), 0, -1) if text.endswith(word[:size])), 0)
        safe = min(safe, len(text) - overlap)
    return safe


class GrowingText:
    """The text of an answer whose tokens arrive in pieces. For each piece, only the last tokens are decoded."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings) -> None:
        self.ids: list[int] = []
        self._decode = partial(decode_tokens, tokenizer, keep_special=settings.keep_special)
        self._stop = settings.stop
        self._n_sent = 0  # length of the text that ``add`` has returned
        self._recent: list[int] = []  # last tokens, including those of an incomplete character
        self._before = self._unsent = ""

    def add(self, ids: Sequence[int]) -> str:
        """Return the new text. An incomplete character or stop string at its end is held back."""
        self.ids += ids
        self._recent += ids
        text = self._decode(self._recent)
        if not text.endswith("\ufffd"):
            self._unsent += text[len(self._before) :]
            self._recent = self._recent[-CONTEXT:]
            self._before = self._decode(self._recent)
        before_stop, _ = cut_at_stop(self._unsent, self._stop)
        safe = safe_length(before_stop, self._stop)
        piece, self._unsent = self._unsent[:safe], self._unsent[safe:]
        self._n_sent += len(piece)
        return piece

    def end(self) -> tuple[str, str]:
        """Return the complete text, and its part that ``add`` has held back."""
        text, _ = cut_at_stop(self._decode(self.ids), self._stop)
        return text, text[self._n_sent :]


@dataclass
class StoppingWatch(StoppingCriteria):
    """End sequences at stop strings, EOS and cancellation. Call ``on_text`` with the first sequence's text."""

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
            on_text = self.on_text if index == 0 else None
            stopped = False
            if on_text or self.stop:
                text, stopped = cut_at_stop(self.decode(ids), self.stop)
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
    """Return ``{"content": [{"token", "logprob", "bytes"}, ...]}`` for the tokens of an answer.

    The texts of the tokens add up to the answer, but the last token may extend into the stop string. A character that
    spans several tokens belongs to the last of these tokens.
    """
    assert generation.logprobs is not None
    content: list[dict[str, Any]] = []
    ids = generation.token_ids
    length = 0  # of the text so far
    begin = 0  # first token of an incomplete character
    for index, logprob in enumerate(generation.logprobs):
        if generation.finish_reason == "stop" and length >= len(generation.text):
            break
        start = max(0, begin - CONTEXT)
        before = decode_tokens(tokenizer, ids[start:begin], keep_special)
        text = decode_tokens(tokenizer, ids[start : index + 1], keep_special)[len(before) :]
        if text.endswith("\ufffd") and index + 1 < len(ids):
            text = ""
        else:
            begin = index + 1
        length += len(text)
        content.append(openai_token(text, logprob))
    return {"content": content}


def openai_token(text: str, logprob: float) -> dict[str, Any]:
    """Convert a token and its log-probability to OpenAI's format, without ``top_logprobs``."""
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
