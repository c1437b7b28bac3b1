"""Measure the time that cached documents save, and compare it with the limit that arithmetic sets.

In each round, the plain model and the method run on the same documents in a new order. The method runs with an empty
cache (cold), with documents in memory, and with documents on disk. Before a disk run, the files are dropped from the
operating system's page cache if the system supports that. --reader-rank adds a reader with random weights to the
method. The values of the weights do not change the time.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from transformers import PreTrainedModel

from ragbias.binding.architectures import KV_CACHE
from ragbias.cache import DocumentCache
from ragbias.cli.terminal import console, progress, quiet_libraries, write_json
from ragbias.errors import MethodError, RagBiasError
from ragbias.generation.arguments import GenerationSettings
from ragbias.generation.attaching import LoadedModel, attached_batch
from ragbias.generation.decoding import padded, processors, suffix_likelihoods
from ragbias.methods import METHODS, JointMethod, Method, NoMethod
from ragbias.prompt import TokenisedPrompt
from ragbias.readers import Lora
from ragbias_eval.cost import spread, synchronized_time
from ragbias_eval.report.tables import make_table
from studies import arguments_of
from studies.arithmetic import ModelShape, PromptLengths, causal_pairs, lengths_of, plain_prefill, shape_of
from studies.speed import (
    SpeedSettings,
    add_options,
    build_model,
    check_length,
    describe_conditions,
    format_range,
    numbers,
    prepare_methods,
)
from studies.speed_inputs import FIRST, PREFIX, SUFFIX, random_lora

STATES = {"none": "plain", "cold": "cold", "memory": "in memory", "disk": "on disk"}
UNLIMITED = 10**15  # bytes; large enough that no document is evicted


def measure(
    settings: SpeedSettings, tokens: Sequence[int], prefixes: Sequence[int], reader_rank: int = 0
) -> dict[str, Any]:
    """Measure each method at each length, prefix and number of documents.

    Args:
        settings: methods, model, numbers of documents, rounds and steps. Its document lengths are not used.
        tokens: lengths of a document in tokens, measured one after the other.
        prefixes: numbers of tokens before the documents, which all requests share; 0: no prefix.
        reader_rank: rank of a random reader of the method; 0: none. The plain model has no reader.

    Returns:
        plain data: ``settings``, ``model``, ``versions``, ``machine`` and ``results``. A result has ``method``,
        ``documents``, ``tokens``, ``prefix``, ``suffix``, ``bytes_per_token``, ``limit`` (the plain model's arithmetic
        divided by the arithmetic of a request with cached documents), and ``states``, the times by state.

    Raises:
        MethodError: a method without reusable documents.
        PromptTooLongError, ArgumentError: see ``speed.run``.
    """
    methods, config = prepare_methods(settings, joint=True)
    for label, method in methods.items():
        if not method.reusable_documents:
            reusable = ", ".join(name for name, cls in METHODS.items() if cls.reusable_documents)
            raise MethodError(f"{label} has no reusable documents; use one of {reusable}")
    sizes = list(itertools.product(tokens, prefixes, settings.documents))
    for length, prefix, count in sizes:
        check_length(count, prefix + count * length - PREFIX, settings.steps, config)
    model = build_model(settings, config)
    lora = random_lora(model, reader_rank) if reader_rank else None
    vocabulary = config.get_text_config().vocab_size
    results = []
    with progress() as bar:
        for length, prefix, count in bar.track(sizes, description="sizes"):
            generator = torch.Generator().manual_seed(0)
            drawn = [
                torch.randint(FIRST, vocabulary, (each,), generator=generator).tolist()
                for each in (prefix, *[length] * count, SUFFIX)
            ]
            prompt = TokenisedPrompt(drawn[0], drawn[1:-1], drawn[-1])
            for label, method in methods.items():
                results.append({"method": label, **_measure_states(model, method, prompt, settings, lora)})
    chosen = {"speed": asdict(settings), "tokens": list(tokens), "prefixes": list(prefixes), "reader_rank": reader_rank}
    return {"settings": chosen, **describe_conditions(settings, model), "results": results}


def cached_prefill(shape: ModelShape, lengths: PromptLengths, logits: int = 1) -> int:
    """Count the multiply-adds up to the first token's logits if the prefix and all documents are cached.

    ``logits`` is the number of tokens whose logits are computed.
    """
    pairs = causal_pairs(lengths.total) - causal_pairs(lengths.total - lengths.suffix)
    layer = lengths.suffix * shape.weights(shape.active_experts) + 2 * shape.width * pairs
    return shape.layers * layer + logits * shape.hidden * shape.vocabulary


@torch.no_grad()
def _measure_states(
    model: PreTrainedModel, method: Method, prompt: TokenisedPrompt, settings: SpeedSettings, lora: Lora | None
) -> dict[str, Any]:
    shape, lengths = shape_of(model.config), lengths_of(prompt)
    with tempfile.TemporaryDirectory() as folder:
        memory, disk = DocumentCache(UNLIMITED), DocumentCache(None, folder, UNLIMITED)
        taken: dict[str, list[tuple[float, float, float]]] = {state: [] for state in STATES}
        for turn in range(settings.rounds + 1):  # the first round warms up, mainly the caches
            shuffled = prompt.reordered(random.Random(turn).sample(range(len(prompt.documents)), len(prompt.documents)))
            caches = {"none": None, "cold": DocumentCache(UNLIMITED), "memory": memory, "disk": disk}
            _drop_page_cache(Path(folder))
            for state, cache in caches.items():
                taken[state].append(_measure_times(model, method, shuffled, settings, cache, lora))
        stats = memory.stats()
    plain, required = taken["none"][1:], 0
    for each in prompts_of(method, prompt):
        logits = len(each.suffix) if isinstance(method, JointMethod) and method.needs_likelihoods else 1
        required += cached_prefill(shape, lengths_of(each), logits)
    return {
        "documents": len(prompt.documents),
        "tokens": len(prompt.documents[0]),
        "prefix": len(prompt.prefix),
        "suffix": len(prompt.suffix),
        "bytes_per_token": stats.memory_bytes / stats.tokens_computed,
        "limit": plain_prefill(shape, lengths) / required,
        "states": {state: _summarise_times(own[1:], plain) for state, own in taken.items()},
    }


def _measure_times(
    model: PreTrainedModel,
    method: Method,
    prompt: TokenisedPrompt,
    settings: SpeedSettings,
    cache: DocumentCache | None,
    lora: Lora | None,
) -> tuple[float, float, float]:
    """Time the first token and each later token in seconds. Return the times and the share of cached tokens."""
    rule, reader = (NoMethod(), None) if cache is None else (method, lora)
    times = [synchronized_time(model.device)]
    prompts = prompts_of(rule, prompt)
    ids, _, spans = padded(prompts, 0, model.device)
    loaded = LoadedModel(model, None, settings.backend, cache)  # the tokenizer is not needed
    with attached_batch(loaded, rule, prompts, spans, lora=reader) as start:
        likelihoods = suffix_likelihoods(model, rule, prompts, start.cache)
        chain = processors(GenerationSettings(), rule, None, len(prompts), model.device, likelihoods)
        cached, seen = start.cache, 0 if start.cache is None else start.cache.get_seq_length()
        for _ in range(settings.steps + 1):
            output = model(ids[:, seen:], use_cache=True, logits_to_keep=1, **{KV_CACHE: cached})
            token = chain(ids, output.logits[:, -1].float()).argmax(-1, keepdim=True)
            cached, seen, ids = output[KV_CACHE], ids.shape[1], torch.cat([ids, token], 1)
            times.append(synchronized_time(model.device))
    reused = sum(start.reused) / sum(len(each.ids) - len(each.suffix) for each in prompts)
    return times[1] - times[0], (times[-1] - times[1]) / settings.steps, reused


def prompts_of(method: Method, prompt: TokenisedPrompt) -> list[TokenisedPrompt]:
    """Return the prompts that the method runs: several for a ``JointMethod``, otherwise the prompt itself."""
    if not isinstance(method, JointMethod):
        return [prompt]
    return [prompt.reordered(indices) for indices in method.prompts(prompt.documents)]


def _summarise_times(own: list[tuple[float, float, float]], plain: list[tuple[float, float, float]]) -> dict[str, Any]:
    """Summarise the times of one state as ``(median, lowest, highest)``, with ratios to the plain model by round.

    The first token's time includes the lookup of documents and the computation of missing documents. ``faster`` is the
    plain model's time divided by the method's time. ``hit_rate`` is the share of prefix and document tokens that were
    cached.
    """
    pairs = list(zip(own, plain, strict=True))
    return {
        "first_token_seconds": spread([mine[0] for mine in own]),
        "faster": spread([base[0] / mine[0] for mine, base in pairs]),
        "decode_seconds": spread([mine[1] for mine in own]),
        "decode_ratio": spread([mine[1] / base[1] for mine, base in pairs]),
        "hit_rate": sum(mine[2] for mine in own) / len(own),
    }


def _drop_page_cache(folder: Path) -> None:
    """Drop the files from the page cache. The next run then reads them from the disk."""
    if not hasattr(os, "posix_fadvise"):  # pragma: no cover, because Linux has it
        return
    for path in folder.iterdir():
        with suppress(OSError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _make_table(result: Mapping[str, Any]) -> Table:
    before = f"{result['prefix']} tokens before them" if result["prefix"] else "nothing before them"
    title = (
        f"{result['method']}: {result['documents']} documents of {result['tokens']} tokens, {before}; "
        f"{result['bytes_per_token'] / 1024:,.1f} KiB/token; arithmetic limit {result['limit']:.0f} times faster"
    )
    table = make_table(title, "", "first token s", "faster (range)", "decoding (range)", "cached", wrap=True)
    for state, cost in result["states"].items():
        cells = (format_range(cost["faster"]), format_range(cost["decode_ratio"]), f"{cost['hit_rate']:.0%}")
        table.add_row(STATES[state], f"{cost['first_token_seconds'][0]:.3f}", *(cells if state != "none" else ()))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--methods", default="ape", help="methods with reusable documents, comma-separated")
    parser.add_argument("--documents", type=numbers, default=(5, 20, 100), help="numbers of documents, e.g. 5,20")
    parser.add_argument("--tokens", type=numbers, default=(100, 512), help="tokens per document, e.g. 100,512")
    parser.add_argument("--prefixes", type=numbers, default=(PREFIX, 0), help="tokens before the documents")
    parser.add_argument("--reader-rank", type=int, default=0, help="rank of a random reader, e.g. 8; 0: no reader")
    add_options(parser)
    parsed = vars(parser.parse_args(arguments))
    tokens, prefixes, out = parsed.pop("tokens"), parsed.pop("prefixes"), parsed.pop("json")
    rank = parsed.pop("reader_rank")
    quiet_libraries()
    try:
        found = measure(SpeedSettings(**parsed), tokens, prefixes, rank)
    except RagBiasError as error:
        parser.exit(2, f"{error}\n")
    about = found["model"]
    console.print(
        f"{about['name']}, {about['weights']} weights, {about['dtype']}, {about['device']}, backend "
        f"{about['backend']}. Median (range) of {parsed['rounds']} rounds, each with the documents in another order; "
        "faster and decoding are ratios to the plain model in the same round."
        + (f" The method reads with a random reader of rank {rank}." if rank else "")
    )
    for result in found["results"]:
        console.print(_make_table(result))
    write_json(found, out)


if __name__ == "__main__":
    main()
