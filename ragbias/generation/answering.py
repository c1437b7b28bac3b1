"""From prepared requests to answers, in padded batches."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList

from ragbias.binding.architectures import window_of
from ragbias.cache import DocumentCache
from ragbias.generation.decoding import (
    CopyFirstSequence,
    FuseLogits,
    StoppingWatch,
    TokenLogprobs,
    decoded,
    processors,
    trimmed,
)
from ragbias.generation.report import Generation, PromptTokensDetails, Usage
from ragbias.generation.request import Request, groups, padded
from ragbias.generation.reuse import entering
from ragbias.generation.scoring import logprobs_of
from ragbias.generation.settings import GenerationSettings, generation_config, pad_token
from ragbias.methods.base import JointMethod


@dataclass(frozen=True)
class Answering:
    """Answers the requests of one call; ``on_text`` receives the text so far after each token of the only request."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    backend: str
    cache: DocumentCache | None
    settings: GenerationSettings
    cancelled: threading.Event | None = None
    on_text: Callable[[str], None] | None = None

    def answers(self, requests: Sequence[Request]) -> list[Generation]:
        """One answer per request; a vote gives the elected one."""
        candidates = [[] if request.method.acts_on == "tokens" else request.candidates() for request in requests]
        generated = iter(self._in_batches([candidate for each in candidates for candidate in each]))
        return [
            self._elected(own, [next(generated) for _ in own]) if own else self._joint(request)
            for request, own in zip(requests, candidates, strict=True)
        ]

    def _in_batches(self, requests: Sequence[Request]) -> list[Generation]:
        answers: dict[int, Generation] = {}
        window = window_of(self.model.config)
        for together in groups(requests, self.settings.batch_size, window, self.settings.max_new_tokens):
            answers.update(zip(together, self._padded([requests[index] for index in together]), strict=True))
        return [answers[index] for index in range(len(requests))]

    def _padded(self, requests: Sequence[Request]) -> list[Generation]:
        """Answers to requests of one method, in one padded batch; prompts of a joint method get the same tokens."""
        settings, method = self.settings, requests[0].method
        prompts = [request.tokens for request in requests]
        ids, mask, spans = padded(prompts, pad_token(self.tokenizer), self.model.device)
        width = ids.shape[1]
        new_tokens = min(settings.max_new_tokens, window_of(self.model.config) - width)
        config, eos, functions = generation_config(self.model, self.tokenizer, settings, new_tokens)
        decode = partial(decoded, self.tokenizer, keep_special=settings.keep_special)
        events = [[event for event in (self.cancelled, each.cancelled) if event is not None] for each in requests]
        watch = StoppingWatch(width, decode, settings.stop, eos, events, self.on_text)
        chain = processors(settings, len(prompts), ids.device)
        recorder = TokenLogprobs() if settings.logprobs else None
        if recorder:
            chain.insert(1, recorder)  # after the check of the logits, before sampling
        if isinstance(method, JointMethod):
            chain.insert(1, FuseLogits(method))
            chain.append(CopyFirstSequence())
        with entering(self.model, method, prompts, spans, self.backend, self.cache, self.cancelled) as entered:
            output: Tensor = self.model.generate(  # type: ignore[operator]
                ids,
                attention_mask=mask,
                past_key_values=entered.cache,
                generation_config=config,
                logits_processor=chain,
                stopping_criteria=StoppingCriteriaList([watch]),
                **functions,
            )
        logprobs = recorder.by_sequence(output) if recorder else None
        answers = []
        for index, (request, row, reused) in enumerate(
            zip(requests, output[:, width:].tolist(), entered.reused, strict=True)
        ):
            new = row[: watch.lengths.get(index, len(row))]
            shown = [at for at, token in enumerate(new) if token not in eos]
            answers.append(
                Generation(
                    text=trimmed(decode(new), settings.stop)[0],
                    token_ids=[new[at] for at in shown],
                    usage=Usage(len(request.tokens.ids), len(new), PromptTokensDetails(reused)),
                    report=replace(request.report, cached_tokens=reused),
                    finish_reason="stop" if index in watch.lengths else "length",
                    logprobs=[logprobs[index][at] for at in shown] if logprobs else None,
                )
            )
        return answers

    def _joint(self, request: Request) -> Generation:
        """The answer of prompts that are decoded together, always in one batch; its usage counts every prompt."""
        first, *others = self._padded(request.candidates())
        usage = sum((replace(each.usage, completion_tokens=0) for each in others), first.usage)
        report = replace(first.report, cached_tokens=usage.prompt_tokens_details.cached_tokens)
        return replace(first, usage=usage, report=report)

    def _elected(self, candidates: Sequence[Request], answers: Sequence[Generation]) -> Generation:
        """The answer to a request, given those to its candidates."""

        def mean_logprob(index: int) -> float:
            ids = answers[index].token_ids
            return sum(logprobs_of(self.model, candidates[index], ids, self.backend)) / len(ids) if ids else -math.inf

        return answers[0] if len(answers) == 1 else elect(answers, mean_logprob)


def elect(generations: Sequence[Generation], mean_logprob: Callable[[int], float]) -> Generation:
    """The generation with the most frequent text, surrounding whitespace ignored; its usage is the sum of all.

    Args:
        mean_logprob: mean log-probability per token of a generation, by index; the highest wins a tie.
    """
    texts = [generation.text.strip() for generation in generations]
    votes = Counter(texts)
    most = max(votes.values())
    firsts = [texts.index(text) for text in dict.fromkeys(texts) if votes[text] == most]
    winner = generations[firsts[0] if len(firsts) == 1 else max(firsts, key=mean_logprob)]
    return replace(winner, usage=sum((generation.usage for generation in generations), Usage(0, 0)))
