"""``ragbias speed --cached`` as a function: what it saves that documents are kept, beside what arithmetic could save.

Each round the plain model and the method take turns on the same documents in an order of its own: cold, with an empty
cache; warm in memory; and warm on disk, where files were pushed out of the system's memory before, if it lets itself be
told.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers import PreTrainedConfig, PreTrainedModel

from ragbias import checks as bounds
from ragbias.binding import backend_of
from ragbias.cache import DocumentCache
from ragbias.checks import check_whole_between
from ragbias.errors import ArgumentError, MethodError
from ragbias.evaluation.cost import random_prompts
from ragbias.evaluation.cost.arithmetic import kept_prefill, lengths_of, plain_prefill, shape_of
from ragbias.evaluation.cost.interleaved import Spread, now, spread
from ragbias.evaluation.cost.machine import all_versions, machine
from ragbias.evaluation.cost.model_shapes import in_every_layer
from ragbias.evaluation.cost.speed_measurement import (
    SpeedSettings,
    built,
    check_length,
    check_method,
    config_for,
    described,
)
from ragbias.generation.reuse import entering
from ragbias.generation.scoring import prefilled
from ragbias.methods import Method, NoMethod
from ragbias.methods.parse import parse_methods
from ragbias.prompt import TokenisedPrompt

STATES = ("none", "cold", "memory", "disk")
ROOM = 10**15  # bytes: nothing leaves a cache here


@dataclass(frozen=True)
class CachedSettings:
    """What to measure.

    Attributes:
        speed: methods, model, numbers of documents, rounds and steps; its lengths are not used.
        tokens: of each document, one length after the other.
        prefixes: tokens before the documents, that all requests share; 0: none.
    """

    speed: SpeedSettings
    tokens: tuple[int, ...] = (100, 512)
    prefixes: tuple[int, ...] = (random_prompts.PREFIX, 0)

    def __post_init__(self) -> None:
        for tokens in self.tokens:
            check_whole_between("tokens", tokens, bounds.TOKENS, ArgumentError)
        for prefix in self.prefixes:
            check_whole_between("prefixes", prefix, bounds.PREFIX, ArgumentError)


@dataclass(frozen=True)
class StateCost:
    """The plain model (``none``), or a method with its cache in one state; ``(median, lowest, highest)``.

    Attributes:
        first_token_seconds: until the first token's logits, with looking documents up and computing those not there.
        faster: how many times as long the plain model took in the same round.
        decode_seconds: for one token after the first; ``decode_ratio`` to the plain model's.
        hit_rate: share of the tokens of prefix and documents that were kept.
    """

    first_token_seconds: Spread
    faster: Spread
    decode_seconds: Spread
    decode_ratio: Spread
    hit_rate: float


def run(settings: CachedSettings, progress: Progress) -> dict[str, Any]:
    """Measure each method at each length, prefix and number of documents.

    Returns:
        plain data: ``settings``, ``model``, ``versions``, ``machine``; and ``results``: ``method``, ``documents``,
        ``tokens``, ``prefix``, ``suffix``, ``bytes_per_token``, ``limit`` (how many times as much arithmetic the plain
        model needs as a request whose documents were kept) and ``states``, a ``StateCost`` by name.

    Raises:
        MethodError: a method without reusable documents, or one that does not run inside the model.
        PromptTooLongError, ArgumentError: as of ``speed_measurement.run``.
    """
    speed = settings.speed
    methods = parse_methods(speed.methods, speed.model, in_every_layer)
    config = config_for(speed)
    for label, method in methods.items():
        check_method(label, method, config)
        if not method.reusable_documents:
            raise MethodError(f"{label} has no reusable documents; see `ragbias methods` for those that have")
    sizes = list(itertools.product(settings.tokens, settings.prefixes, speed.documents))
    for tokens, prefix, count in sizes:
        check_length(count, count * tokens, speed.steps, config, prefix)
    task = progress.add_task("building the model", total=len(sizes) * len(methods) * (speed.rounds + 1) * len(STATES))
    model = built(speed, config, torch.device(speed.device))
    backend_of(model, speed.backend)  # raises where this model cannot have it
    results = []
    for tokens, prefix, count in sizes:
        prompt = _prompt(config, tokens, prefix, count)
        for label, method in methods.items():
            progress.update(task, description=f"{label}, {count} documents of {tokens} tokens")
            results.append({"method": label, **measure(model, method, prompt, speed, lambda: progress.advance(task))})
    return {
        "settings": asdict(settings),
        "model": described(speed, model),
        "versions": all_versions(),
        "machine": machine(),
        "results": results,
    }


def _prompt(config: PreTrainedConfig, tokens: int, prefix: int, count: int) -> TokenisedPrompt:
    vocabulary = config.get_text_config().vocab_size
    return random_prompts.draw([tokens] * count, 1, vocabulary, torch.device("cpu"), prefix=prefix).prompts[0]


@torch.no_grad()
def measure(
    model: PreTrainedModel,
    method: Method,
    prompt: TokenisedPrompt,
    speed: SpeedSettings,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """One method on one prompt, as of ``run``; ``progress`` is called after each of a round's ``STATES``."""
    shape, lengths = shape_of(model.config), lengths_of(prompt)
    with tempfile.TemporaryDirectory() as folder:
        memory, filling = DocumentCache(ROOM), DocumentCache(None, folder, ROOM)
        taken: dict[str, list[tuple[float, float, float]]] = {state: [] for state in STATES}
        for turn in range(speed.rounds + 1):  # the first one warms up, the caches above all
            shuffled = prompt.reordered(random.Random(turn).sample(range(len(prompt.documents)), len(prompt.documents)))
            caches = {"cold": DocumentCache(ROOM), "memory": memory, "disk": filling}
            _leave_memory(Path(folder))
            for state in STATES:
                taken[state].append(_times(model, method, shuffled, speed, caches.get(state)))
                progress()
        kept = memory.stats()
    return {
        "documents": len(prompt.documents),
        "tokens": len(prompt.documents[0]),
        "prefix": len(prompt.prefix),
        "suffix": len(prompt.suffix),
        "bytes_per_token": kept.memory_bytes / kept.tokens_computed,
        "limit": plain_prefill(shape, lengths) / kept_prefill(shape, lengths),
        "states": {state: asdict(_cost(taken, state)) for state in STATES},
    }


def _times(
    model: PreTrainedModel, method: Method, prompt: TokenisedPrompt, speed: SpeedSettings, cache: DocumentCache | None
) -> tuple[float, float, float]:
    """Seconds until the first token and for one after it, and the share of kept tokens; without a cache, of the plain
    model."""
    rule = NoMethod() if cache is None else method
    begin = now(model.device)
    with entering(model, rule, [prompt], [prompt.spans], speed.backend, cache) as entered:
        logits, filled = prefilled(model, prompt.ids, entered.cache)
        token = int(logits.argmax())
        first = now(model.device)
        for _ in range(speed.steps):
            ids = torch.tensor([[token]], device=model.device)
            token = int(model(ids, past_key_values=filled, use_cache=True).logits[0, -1].argmax())
        last = now(model.device)
    return first - begin, (last - first) / speed.steps, entered.reused[0] / (len(prompt.ids) - len(prompt.suffix))


def _cost(taken: Mapping[str, list[tuple[float, float, float]]], state: str) -> StateCost:
    own, plain = taken[state][1:], taken["none"][1:]
    pairs = list(zip(own, plain, strict=True))
    return StateCost(
        first_token_seconds=spread([mine[0] for mine in own]),
        faster=spread([base[0] / mine[0] for mine, base in pairs]),
        decode_seconds=spread([mine[1] for mine in own]),
        decode_ratio=spread([mine[1] / base[1] for mine, base in pairs]),
        hit_rate=sum(mine[2] for mine in own) / len(own),
    )


def _leave_memory(folder: Path) -> None:
    """Have the system forget what it holds of the files, so that they are read from the disk."""
    if not hasattr(os, "posix_fadvise"):  # pragma: no cover, not on Linux
        return
    for path in folder.iterdir():
        with suppress(OSError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
