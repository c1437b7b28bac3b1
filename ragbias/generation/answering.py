"""Padded batches: from prepared requests to their answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList

from ragbias.binding.architectures import window_of
from ragbias.cache import DocumentCache
from ragbias.generation.arguments import generation_config, pad_token
from ragbias.generation.decoding import StoppingWatch, TokenLogprobs, decoded, processors, stop_strings, trimmed
from ragbias.generation.joint import CopyFirstSequence, FuseLogits
from ragbias.generation.report import Generation, PromptTokensDetails, Usage
from ragbias.generation.request import Request, groups, padded
from ragbias.generation.reuse import entering
from ragbias.generation.voting import elected
from ragbias.methods.base import JointMethod


def answer_all(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    requests: Sequence[Request],
    backend: str,
    **settings: Any,
) -> list[Generation]:
    """One answer for each request: the elected one where it is voted over; settings as of ``answer_batches``."""
    candidates = [request.candidates() for request in requests if request.method.acts_on != "tokens"]
    flat = [candidate for each in candidates for candidate in each]
    given = iter(answer_batches(model, tokenizer, flat, backend, **settings))
    voted = iter([elected(model, each, [next(given) for _ in each], backend) for each in candidates])
    return [
        answer_jointly(model, tokenizer, each, backend=backend, **settings)
        if each.method.acts_on == "tokens"
        else next(voted)
        for each in requests
    ]


def answer_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    requests: Sequence[Request],
    backend: str,
    *,
    batch_size: int,
    max_new_tokens: int,
    **settings: Any,
) -> list[Generation]:
    """Generate for requests in padded batches of at most ``batch_size``, see ``request.groups`` and ``answer``."""
    window = window_of(model.config)
    answers: dict[int, Generation] = {}
    for together in groups(requests, batch_size, window, max_new_tokens):
        part = [requests[index] for index in together]
        room = min(max_new_tokens, window - max(len(request.tokens.ids) for request in part))
        results = answer(model, tokenizer, part, room, backend=backend, **settings)
        answers.update(zip(together, results, strict=True))
    return [answers[index] for index in range(len(requests))]


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    requests: Sequence[Request],
    max_new_tokens: int,
    *,
    backend: str,
    stop: Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = (),
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    do_sample: bool | None = None,
    logprobs: bool = False,
    keep_special: Sequence[str] | None = (),
    cache: DocumentCache | None = None,
    cancelled: threading.Event | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
    **generate_kwargs: Any,
) -> list[Generation]:
    """Generate for requests of one method, in one padded batch; the settings are those of ``DebiasedLM.generate``.

    The requests of a method that decodes prompts side by side are those of one such prompt, and get the same tokens.

    Args:
        max_new_tokens: no more than the model's window leaves after the longest prompt.
        cache: where documents are kept, for methods with reusable ones.
        cancelled: ends the answers where they are.
        on_tokens: gets all new tokens of the only request after each of them.
    """
    if do_sample is not None:
        temperature = (1.0 if temperature is None else temperature) if do_sample else None
    prompts = [request.tokens for request in requests]
    width = max(len(prompt.ids) for prompt in prompts)
    ids, mask, spans = padded(prompts, pad_token(tokenizer), model.device)
    config, eos = generation_config(model, tokenizer, max_new_tokens, () if stop_token_ids is None else stop_token_ids)
    unknown = config.update(**generate_kwargs)
    stops = stop_strings(stop)
    decode = partial(decoded, tokenizer, keep_special=keep_special or ())
    events = [[event for event in (cancelled, request.cancelled) if event is not None] for request in requests]
    watch = StoppingWatch(width, decode, stops, eos, events, on_tokens)
    chain = processors(temperature, top_k, top_p, seed, len(prompts), ids.device)
    recorder = TokenLogprobs() if logprobs else None
    if recorder:
        chain.insert(1, recorder)  # after the check of the logits, before what samples
    method = requests[0].method
    if isinstance(method, JointMethod):
        chain.insert(1, FuseLogits(method))
        chain.append(CopyFirstSequence())
    with entering(model, method, prompts, spans, backend, cache, cancelled) as entered:
        output: Tensor = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=mask,
            past_key_values=entered.cache,
            generation_config=config,
            logits_processor=chain,
            stopping_criteria=StoppingCriteriaList([watch]),
            **unknown,
        )
    new_ids = output[:, width:].tolist()
    values = recorder.by_sequence(output) if recorder else [None] * len(new_ids)
    answers = []
    for index, (request, ids_of_one, own, reused) in enumerate(
        zip(requests, new_ids, values, entered.reused, strict=True)
    ):
        new = ids_of_one[: watch.lengths.get(index, len(ids_of_one))]
        kept = [at for at, token in enumerate(new) if token not in eos]
        answers.append(
            Generation(
                text=trimmed(decode(new), stops)[0],
                token_ids=[new[at] for at in kept],
                usage=Usage(len(request.tokens.ids), len(new), PromptTokensDetails(reused)),
                report=replace(request.report, cached_tokens=reused),
                finish_reason="stop" if index in watch.lengths else "length",
                logprobs=None if own is None else [own[at] for at in kept],
            )
        )
    return answers


def answer_jointly(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    request: Request,
    *,
    backend: str,
    batch_size: int,
    max_new_tokens: int,
    **settings: Any,
) -> Generation:
    """The answer to a request whose prompts are decoded side by side, in one batch whatever ``batch_size`` is.

    Its usage counts the tokens of every prompt.
    """
    prompts = request.candidates()
    room = min(max_new_tokens, window_of(model.config) - max(len(each.tokens.ids) for each in prompts))
    first, *others = answer(model, tokenizer, prompts, room, backend=backend, **settings)
    counted = sum((replace(each.usage, completion_tokens=0) for each in others), first.usage)
    report = replace(first.report, cached_tokens=counted.prompt_tokens_details.cached_tokens)
    return replace(first, usage=counted, report=report)
