"""``ragbias speed``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from ragbias.cli.terminal import JsonPath, console, progress, status, write_json


def speed(
    methods: Annotated[str, typer.Option(help="Comma-separated names.")] = "pine,channel-scaling",
    documents: Annotated[int, typer.Option(min=1)] = 20,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each document.")] = 100,
    layers: Annotated[
        int, typer.Option(min=1, help="Layers of the random model; its shape is that of a 1B Llama.")
    ] = 2,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    json_path: JsonPath = None,
) -> None:
    """Time prefill and decoding of methods against plain sdpa, interleaved, at the shape of a 1B Llama."""
    from ragbias.evaluation.speed import in_every_layer, measure, random_llama

    chosen = [in_every_layer(name) for name in methods.split(",")]
    with status("Building the model"):
        model = random_llama(layers)
    with progress() as bar:
        task = bar.add_task("", total=(rounds + 1) * (len(chosen) + 1))

        def show(name: str) -> None:
            bar.update(task, advance=1, description=f"timing {name}")

        costs = measure(model, chosen, documents, tokens, rounds=rounds, progress=show)
    title = f"{documents} documents of {tokens} tokens, {layers} layers; ratio to none: median (range)"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), header_style="bold underline")
    for column in ("method", "prefill s", "ratio", "decode s", "ratio"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for name, cost in costs.items():
        prefill, decode = (
            f"{median:.2f} ({low:.2f}-{high:.2f})" for median, low, high in (cost.prefill_ratio, cost.decode_ratio)
        )
        table.add_row(name, f"{cost.prefill_seconds:.3f}", prefill, f"{cost.decode_seconds:.4f}", decode)
    console.print(table)
    write_json({name: cost.as_dict() for name, cost in costs.items()}, json_path)
