"""``ragbias speed``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ragbias import checks as bounds
from ragbias.cli.numeric import numbers, ranged, whole, wholes
from ragbias.cli.terminal import MODELS, JsonPath, console, picture, progress, quiet_libraries, write_json
from ragbias.errors import ArgumentError
from ragbias.files import writing

MIB = 2**20
STATES = {"none": "plain", "cold": "cold", "memory": "in memory", "disk": "on disk"}  # of ``--cached``


def speed(
    methods: Annotated[
        str | None,
        typer.Option(
            help="See `ragbias methods`; without parameters a method acts in every layer. Default: "
            "pine,channel-scaling; ape of --cached."
        ),
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="1b or 8b: a Llama of that shape with random weights. Default: 1b.")
    ] = None,
    model: Annotated[str | None, typer.Option(help=f"{MODELS} Or a config.json, for random weights.")] = None,
    layers: Annotated[int | None, whole(bounds.LAYERS, "Of a built-in shape. Default: 2.")] = None,
    documents: Annotated[
        str | None,
        wholes(bounds.DOCUMENTS, "Number of documents, or several: 2,20,100. Default: 20; 5,20,100 of --cached."),
    ] = None,
    tokens: Annotated[
        str | None,
        wholes(bounds.TOKENS, "Tokens of each document. Default: 100; several, 100,512, of --cached."),
    ] = None,
    total_tokens: Annotated[
        int | None, whole(bounds.TOTAL_TOKENS, "Tokens of all documents together, instead of --tokens.")
    ] = None,
    ragged: Annotated[
        bool, typer.Option("--ragged", help="Draw each length between half and one and a half times that.")
    ] = False,
    batch: Annotated[int, whole(bounds.BATCH, "Prompts in one padded batch, each with its documents.")] = 1,
    cached: Annotated[
        bool,
        typer.Option("--cached", help="Time saved by cached documents: cold, warm in memory, warm on disk."),
    ] = False,
    prefixes: Annotated[
        str | None,
        wholes(bounds.PREFIX, "With --cached: tokens that all requests share before the documents. Default: 20,0."),
    ] = None,
    rounds: Annotated[int, whole(bounds.ROUNDS, "After one that warms up.")] = 5,
    steps: Annotated[int, whole(bounds.STEPS, "Decoded tokens in each round.")] = 8,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16. Default: float32, or as stored.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    backend: Annotated[str, typer.Option(help="auto, torch, triton or flash.")] = "auto",
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the ratios against the number of documents; needs several.", callback=picture),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Measure time and memory of methods, interleaved with plain attention, beside the limits of their arithmetic."""
    from ragbias.evaluation.cost.cached_speed import CachedSettings
    from ragbias.evaluation.cost.cached_speed import run as run_cached
    from ragbias.evaluation.cost.speed import SpeedSettings, run

    quiet_libraries()
    lengths = numbers(tokens) or []
    common: dict[str, Any] = {
        "shape": shape,
        "model": model,
        "layers": layers,
        "rounds": rounds,
        "steps": steps,
        "dtype": dtype,
        "device": device,
        "backend": backend,
    }
    if cached:
        if ragged or batch > 1 or total_tokens is not None or plot is not None:
            raise ArgumentError(
                "--cached times one prompt of equal documents; leave out --ragged, --batch, --total-tokens, --plot"
            )
        sizes = {"tokens": tuple(lengths), "prefixes": tuple(numbers(prefixes) or ())}
        plain = SpeedSettings(methods=methods or "ape", documents=tuple(numbers(documents) or (5, 20, 100)), **common)
        cached_settings = CachedSettings(plain, **{name: value for name, value in sizes.items() if value})
        with progress() as bar:
            outcome = run_cached(cached_settings, bar)
        conditions = (
            f"Median (range) of {rounds} rounds, each with the documents in another order. Faster, decoding: ratios to "
            "the plain model in the same round."
        )
        _show(outcome, conditions, [_cached_table(result) for result in outcome["results"]])
        write_json(outcome, json_path)
        return
    if len(lengths) > 1 or prefixes is not None:
        raise ArgumentError("several --tokens, and --prefixes, go with --cached")
    counts = tuple(numbers(documents) or (20,))
    if plot is not None:
        if len(set(counts)) < 2:
            raise ArgumentError("--plot needs several numbers of documents, e.g. --documents 2,20,100")
        from ragbias.evaluation.cost.scaling_plot import scaling  # here, to report a missing matplotlib at once
    settings = SpeedSettings(
        methods=methods or "pine,channel-scaling",
        documents=counts,
        tokens=lengths[0] if lengths else None,
        total_tokens=total_tokens,
        ragged=ragged,
        batch=batch,
        **common,
    )
    with progress() as bar:
        outcome = run(settings, bar)
    conditions = (
        f"Batch of {batch}. Ratios to none in the same round: median (range) of {rounds} rounds; limit: the ratio that "
        "the arithmetic requires."
    )
    _show(outcome, conditions, [table for result in outcome["results"] for table in _tables(result)])
    write_json(outcome, json_path)
    if plot is not None:
        with writing(plot):
            scaling(outcome, plot)
        console.print(f"Written: {plot}", markup=False)


def _show(outcome: Mapping[str, Any], conditions: str, tables: list[Table]) -> None:
    about = outcome["model"]
    console.print(
        f"{about['name']}, {about['weights']} weights, {about['dtype']}, {about['device']}, backend "
        f"{about['backend']}, {outcome['machine']['threads']} threads. {conditions}",
        highlight=False,
    )
    for table in tables:
        console.print()
        console.print(table)


def _cached_table(result: Mapping[str, Any]) -> Table:
    from ragbias.evaluation.report.tables import plain_table

    before = f"{result['prefix']} tokens before them" if result["prefix"] else "nothing before them"
    title = (
        f"{result['method']}: {result['documents']} documents of {result['tokens']} tokens, {before}; "
        f"{result['bytes_per_token'] / 1024:,.1f} KiB/token; by arithmetic {result['limit']:.0f} times faster"
    )
    table = plain_table(title, "", "first token s", "faster (range)", "decoding (range)", "cached", wrap=True)
    for state, cost in result["states"].items():
        cells = (ranged(cost["faster"]), ranged(cost["decode_ratio"]), f"{cost['hit_rate']:.0%}")
        table.add_row(STATES[state], f"{cost['first_token_seconds'][0]:.3f}", *(cells if state != "none" else ()))
    return table


def _tables(result: Mapping[str, Any]) -> list[Table]:
    """Two tables, as one is too wide for many terminals: up to the first token, and after it."""
    from ragbias.evaluation.report.tables import plain_table

    lengths = [length for row in result["lengths"] for length in row]
    of = str(lengths[0]) if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
    title = f"{result['documents']} documents of {of} tokens"
    prompt = plain_table(title, "method", "prefill s", "ratio (range)", "limit", "first token s", "ratio")
    after = plain_table("", "method", "decode ms", "ratio (range)", "limit", "peak MiB", "ratio")
    for label, cost in result["methods"].items():
        prompt.add_row(
            label,
            f"{cost['prefill_seconds'][0]:.3f}",
            ranged(cost["prefill_ratio"]),
            _limit(cost["prefill_limit"]),
            f"{cost['first_token_seconds'][0]:.3f}",
            f"{cost['first_token_ratio'][0]:.2f}",
        )
        after.add_row(
            label,
            f"{1000 * cost['decode_seconds'][0]:.2f}",
            ranged(cost["decode_ratio"]),
            _limit(cost["decode_limit"]),
            f"{cost['peak_bytes'] / MIB:.1f}",
            f"{cost['peak_ratio']:.2f}",
        )
    return [prompt, after]


def _limit(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
