"""``ragbias speed --cached``: time saved by cached documents, beside the limit of the arithmetic.

Each round the plain model and the method take turns on the same documents in a new order: cold, with an empty cache;
warm in memory; and warm on disk, whose files the system drops from its memory first, where it can.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers import PreTrainedModel

from ragbias.cache import DocumentCache
from ragbias.errors import MethodError
from ragbias.evaluation.cost import random_prompts
from ragbias.evaluation.cost.arithmetic import cached_prefill, lengths_of, plain_prefill, shape_of
from ragbias.evaluation.cost.measuring import now, spread
from ragbias.evaluation.cost.speed import SpeedSettings, built, check_length, conditions, prepared
from ragbias.generation.reuse import entering
from ragbias.generation.scoring import prefilled
from ragbias.methods import Method, NoMethod
from ragbias.prompt import TokenisedPrompt

STATES = ("none", "cold", "memory", "disk")
UNLIMITED = 10**15  # bytes: nothing is evicted from a cache here


@dataclass(frozen=True)
class CachedSettings:
    """Methods, model and prompts to measure.

    Attributes:
        speed: methods, model, numbers of documents, rounds and steps; its lengths are not used.
        tokens: of each document, one length after the other.
        prefixes: tokens before the documents, that all requests share; 0: none.
    """

    speed: SpeedSettings
    tokens: tuple[int, ...] = (100, 512)
    prefixes: tuple[int, ...] = (random_prompts.PREFIX, 0)


def run(settings: CachedSettings, progress: Progress) -> dict[str, Any]:
    """Measure each method at each length, prefix and number of documents.

    Returns:
        plain data: ``settings``, ``model``, ``versions``, ``machine``; and ``results``: ``method``, ``documents``,
        ``tokens``, ``prefix``, ``suffix``, ``bytes_per_token``, ``limit`` (the plain model's arithmetic divided by that
        of a request with cached documents) and ``states``, see ``_cost``, by name.

    Raises:
        MethodError: a method without reusable documents, or one that does not run inside the model.
        PromptTooLongError, ArgumentError: see ``speed.run``.
    """
    speed = settings.speed
    methods, config = prepared(speed)
    for label, method in methods.items():
        if not method.reusable_documents:
            raise MethodError(f"{label} has no reusable documents; see `ragbias methods` for those that have")
    sizes = list(itertools.product(settings.tokens, settings.prefixes, speed.documents))
    for tokens, prefix, count in sizes:
        check_length(count, count * tokens, speed.steps, config, prefix)
    task = progress.add_task("building the model", total=len(sizes) * len(methods) * (speed.rounds + 1) * len(STATES))
    model = built(speed, config)
    vocabulary, cpu = config.get_text_config().vocab_size, torch.device("cpu")
    results = []
    for tokens, prefix, count in sizes:
        prompt = random_prompts.draw([tokens] * count, 1, vocabulary, cpu, prefix=prefix).prompts[0]
        for label, method in methods.items():
            progress.update(task, description=f"{label}, {count} documents of {tokens} tokens")
            results.append({"method": label, **_measure(model, method, prompt, speed, lambda: progress.advance(task))})
    return {"settings": asdict(settings), **conditions(speed, model), "results": results}


@torch.no_grad()
def _measure(
    model: PreTrainedModel, method: Method, prompt: TokenisedPrompt, speed: SpeedSettings, progress: Callable[[], None]
) -> dict[str, Any]:
    """One of the ``results``; ``progress`` is called after each of a round's ``STATES``."""
    shape, lengths = shape_of(model.config), lengths_of(prompt)
    with tempfile.TemporaryDirectory() as folder:
        memory, disk = DocumentCache(UNLIMITED), DocumentCache(None, folder, UNLIMITED)
        taken: dict[str, list[tuple[float, float, float]]] = {state: [] for state in STATES}
        for turn in range(speed.rounds + 1):  # the first one warms up, the caches above all
            shuffled = prompt.reordered(random.Random(turn).sample(range(len(prompt.documents)), len(prompt.documents)))
            caches = {"none": None, "cold": DocumentCache(UNLIMITED), "memory": memory, "disk": disk}
            _drop_from_memory(Path(folder))
            for state, cache in caches.items():
                taken[state].append(_times(model, method, shuffled, speed, cache))
                progress()
        stats = memory.stats()
    plain = taken["none"][1:]
    return {
        "documents": len(prompt.documents),
        "tokens": len(prompt.documents[0]),
        "prefix": len(prompt.prefix),
        "suffix": len(prompt.suffix),
        "bytes_per_token": stats.memory_bytes / stats.tokens_computed,
        "limit": plain_prefill(shape, lengths) / cached_prefill(shape, lengths),
        "states": {state: _cost(own[1:], plain) for state, own in taken.items()},
    }


def _times(
    model: PreTrainedModel, method: Method, prompt: TokenisedPrompt, speed: SpeedSettings, cache: DocumentCache | None
) -> tuple[float, float, float]:
    """Seconds until the first token and for one after it, and the share of cached tokens; without a cache, of the plain
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


def _cost(own: list[tuple[float, float, float]], plain: list[tuple[float, float, float]]) -> dict[str, Any]:
    """Times of one state, ``(median, lowest, highest)``; ratios to the plain model's in the same round.

    The first token's include looking up documents and computing missing ones. ``faster`` is the plain model's time
    divided by this one, ``hit_rate`` the share of the tokens of prefix and documents that were cached.
    """
    pairs = list(zip(own, plain, strict=True))
    return {
        "first_token_seconds": spread([mine[0] for mine in own]),
        "faster": spread([base[0] / mine[0] for mine, base in pairs]),
        "decode_seconds": spread([mine[1] for mine in own]),
        "decode_ratio": spread([mine[1] / base[1] for mine, base in pairs]),
        "hit_rate": sum(mine[2] for mine in own) / len(own),
    }


def _drop_from_memory(folder: Path) -> None:
    """Make the system read the files from the disk."""
    if not hasattr(os, "posix_fadvise"):  # pragma: no cover, not on Linux
        return
    for path in folder.iterdir():
        with suppress(OSError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
