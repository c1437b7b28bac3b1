"""``ragbias speed``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ragbias import limits
from ragbias.cli.numeric import ranged, whole, wholes
from ragbias.cli.terminal import (
    MODELS,
    Force,
    JsonPath,
    console,
    output,
    picture,
    progress,
    quiet_libraries,
    write_json,
)
from ragbias.errors import ArgumentError
from ragbias.methods import DEFAULT_METHOD

MIB = 2**20


def speed(
    methods: Annotated[
        str, typer.Option(help="See `ragbias methods`; without parameters a method acts in every layer.")
    ] = f"{DEFAULT_METHOD},channel-scaling",
    shape: Annotated[
        str | None, typer.Option(help="1b or 8b: a Llama of that shape with random weights. Default: 1b.")
    ] = None,
    model: Annotated[str | None, typer.Option(help=f"{MODELS} Or a config.json, for random weights.")] = None,
    layers: Annotated[int | None, whole(limits.LAYERS, "Layers of a built-in shape. Default: 2.")] = None,
    documents: Annotated[str, wholes(limits.DOCUMENTS, "Number of documents, or several: 2,20,100.")] = "20",
    tokens: Annotated[int | None, whole(limits.TOKENS, "Tokens of each document. Default: 100.")] = None,
    total_tokens: Annotated[
        int | None, whole(limits.TOTAL_TOKENS, "Tokens of all documents together, instead of --tokens.")
    ] = None,
    ragged: Annotated[
        bool, typer.Option("--ragged", help="Draw each length between half and one and a half times that.")
    ] = False,
    batch: Annotated[int, whole(limits.BATCH, "Prompts in one padded batch, each with its documents.")] = 1,
    rounds: Annotated[int, whole(limits.ROUNDS, "Measured rounds, after one warm-up round.")] = 5,
    steps: Annotated[int, whole(limits.STEPS, "Decoded tokens in each round.")] = 8,
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
    force: Force = False,
) -> None:
    """Measure time and memory of methods, interleaved with plain attention, beside the limits of their arithmetic."""
    options = dict(locals())
    from ragbias.evaluation.cost.speed import SpeedSettings, run

    quiet_libraries()
    counts = tuple(int(count) for count in documents.split(","))
    if plot is not None:
        if len(set(counts)) < 2:
            raise ArgumentError("--plot needs several numbers of documents, e.g. --documents 2,20,100")
        from ragbias.evaluation.cost.scaling_plot import scaling  # here, to report a missing matplotlib at once
    settings = SpeedSettings(
        **{**{field.name: options[field.name] for field in fields(SpeedSettings)}, "documents": counts}
    )
    with progress() as bar:
        outcome = run(settings, bar)
    about = outcome["model"]
    console.print(
        f"{about['name']}, {about['weights']} weights, {about['dtype']}, {about['device']}, backend "
        f"{about['backend']}, {outcome['machine']['threads']} threads. Batch of {batch}. Ratios to none in the same "
        f"round: median (range) of {rounds} rounds; limit: the ratio that the arithmetic requires.",
        highlight=False,
    )
    for result in outcome["results"]:
        for table in _tables(result):
            console.print()
            console.print(table)
    write_json(outcome, json_path)
    if plot is not None:
        with output(plot):
            scaling(outcome, plot)
        console.print(f"Written: {plot}")


def _tables(result: Mapping[str, Any]) -> list[Table]:
    """Two tables that fit a terminal: costs up to the first token, and after it."""
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
