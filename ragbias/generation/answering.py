"""Answer prepared requests in padded batches."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

from torch import Tensor
from transformers import StoppingCriteriaList

from ragbias.binding.architectures import KV_CACHE, window_of
from ragbias.generation.arguments import GenerationSettings, generation_config, pad_token
from ragbias.generation.attaching import LoadedModel, attached_batch
from ragbias.generation.decoding import (
    StoppingWatch,
    TokenLogprobs,
    cut_at_stop,
    decode_tokens,
    padded,
    processors,
    suffix_likelihoods,
)
from ragbias.generation.request import Generation, Request, Usage
from ragbias.generation.scoring import logprobs_of
from ragbias.methods import JointMethod

Batch: TypeAlias = list[tuple[int, Request]]  # candidates, each with the index of its request


@dataclass(frozen=True)
class Answering:
    """Answer the requests of one call. If there is only one, ``on_text`` is called with its answer so far."""

    loaded: LoadedModel
    settings: GenerationSettings
    cancelled: threading.Event | None
    on_text: Callable[[str], None] | None = None

    def generate_batches(self, requests: Sequence[Request]) -> list[Generation]:
        """Return one answer per request, combined from the answers to its candidates."""
        candidates = [request.candidates() for request in requests]
        answers: list[list[Generation]] = [[] for _ in requests]
        window = window_of(self.loaded.model.config)
        for batch in group_candidates(candidates, self.settings.batch_size, window, self.settings.max_new_tokens):
            generated = self._generate_padded([candidate for _, candidate in batch])
            for (index, _), answer in zip(batch, generated, strict=True):
                answers[index].append(answer)
        return [self._combine(*pair) for pair in zip(candidates, answers, strict=True)]

    def _generate_padded(self, requests: Sequence[Request]) -> list[Generation]:
        """Answer requests with the same method in one padded batch."""
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        settings = self.settings
        method = requests[0].method
        prompts = [request.tokens for request in requests]
        ids, mask, spans = padded(prompts, pad_token(tokenizer), model.device)
        width = ids.shape[1]
        new_tokens = min(settings.max_new_tokens, window_of(model.config) - width)
        config, eos, functions = generation_config(model, tokenizer, settings, new_tokens)
        decode = partial(decode_tokens, tokenizer, keep_special=settings.keep_special)
        events = [[event for event in (self.cancelled, request.cancelled) if event] for request in requests]
        watch = StoppingWatch(width, decode, settings.stop, eos, events, self.on_text)
        recorder = TokenLogprobs() if settings.logprobs else None
        with attached_batch(self.loaded, method, prompts, spans, self.cancelled) as start:
            likelihoods = suffix_likelihoods(model, method, prompts, start.cache)
            chain = processors(settings, method, recorder, len(prompts), ids.device, likelihoods)
            output: Tensor = model.generate(  # type: ignore[operator]
                ids,
                attention_mask=mask,
                generation_config=config,
                logits_processor=chain,
                stopping_criteria=StoppingCriteriaList([watch]),
                **{KV_CACHE: start.cache},
                **functions,
            )
        rows = output[:, width:].tolist()
        logprobs = recorder.by_sequence(output) if recorder else [None] * len(requests)
        answers = []
        for index, request in enumerate(requests):
            ended: Literal["stop", "length"] = "stop" if index in watch.lengths else "length"
            row = rows[index]
            new = row[: watch.lengths.get(index, len(row))]
            text, _ = cut_at_stop(decode(new), settings.stop)
            reused = start.reused[index]
            answers.append(Generation.from_tokens(request, text, new, eos, reused, ended, logprobs[index]))
        return answers

    def _combine(self, candidates: Sequence[Request], answers: Sequence[Generation]) -> Generation:
        """Return the answer to a request from the answers to its candidates."""
        if isinstance(candidates[0].method, JointMethod):  # all answers are equal, and the usage counts all prompts
            first, *others = answers
            usage = sum((replace(other.usage, completion_tokens=0) for other in others), first.usage)
            return replace(first, usage=usage, report=replace(first.report, cached_tokens=usage.cached_tokens))

        def mean_logprob(index: int) -> float:
            ids = answers[index].token_ids
            return sum(logprobs_of(self.loaded, candidates[index], ids)) / len(ids) if ids else -math.inf

        return elect(answers, mean_logprob)


def elect(generations: Sequence[Generation], mean_logprob: Callable[[int], float]) -> Generation:
    """Return the generation with the most frequent text, ignoring outer white space. Its usage counts all generations.

    Args:
        mean_logprob: maps a generation's index to its mean log-probability per token. The highest value breaks a tie.
    """
    texts = [generation.text.strip() for generation in generations]
    votes = Counter(texts)
    most = max(votes.values())
    firsts = [texts.index(text) for text in dict.fromkeys(texts) if votes[text] == most]
    winner = firsts[0] if len(firsts) == 1 else max(firsts, key=mean_logprob)
    usage = sum((generation.usage for generation in generations), Usage(0, 0))
    return replace(generations[winner], usage=usage)


def group_candidates(candidates: Sequence[Sequence[Request]], size: int, window: int, new_tokens: int) -> list[Batch]:
    """Split the candidates of all requests into batches. All prompts of a joint method are one batch.

    Other batches contain at most ``size`` candidates, with the same method and the same maximum number of new tokens. A
    long prompt leaves fewer new tokens in the window. Therefore it is not in a batch with short prompts, whose answers
    it would truncate.
    """
    joint: list[Batch] = []
    single: Batch = []
    for index, of_request in enumerate(candidates):
        batch = [(index, candidate) for candidate in of_request]
        if isinstance(of_request[0].method, JointMethod):
            joint.append(batch)
        else:
            single += batch
    keys = [(candidate.method, min(new_tokens, window - len(candidate.tokens.ids))) for _, candidate in single]
    distinct = [key for index, key in enumerate(keys) if key not in keys[:index]]  # no set: methods may be unhashable
    batches: list[Batch] = []
    for key in distinct:
        group = [each for each, other in zip(single, keys, strict=True) if other == key]
        batches += [group[begin : begin + size] for begin in range(0, len(group), size)]
    return batches + joint
