"""``ragbias inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ragbias.cli.terminal import JsonPath, console, picture, progress, status, write_json
from ragbias.evaluation.plain_table import plain_table


def inspect(
    questions: Annotated[Path, typer.Option(help="JSON lines of question and documents; answer or gold if known.")],
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.", callback=picture)],
    model: Annotated[str, typer.Option(help="'tiny', a hub name or a path.")] = "tiny",
    methods: Annotated[str, typer.Option(help="Comma-separated, one heat map each.")] = "none,pine",
    limit: Annotated[int | None, typer.Option(min=1, help="Take the first questions only.")] = None,
    json_path: JsonPath = None,
) -> None:
    """Show where the prompt's last token looks: its attention to each document, by layer, before and after a method."""
    from ragbias.evaluation.attention_plot import heat_maps
    from ragbias.evaluation.inspecting import inspect as look
    from ragbias.evaluation.loading import load_model
    from ragbias.evaluation.method_list import parse_methods
    from ragbias.evaluation.questions import read_questions

    asked = read_questions(questions)[:limit]
    chosen = parse_methods(methods, model)
    with status("Loading the model"):
        lm = load_model(model)
    with progress() as bar:
        task = bar.add_task("", total=len(asked) * len(chosen))
        views = look(lm, asked, chosen, lambda label: bar.update(task, advance=1, description=label))
    title = f"Attention of the prompt's last token: {model}, {len(asked)} questions"
    heat_maps(views, title).savefig(out, dpi=130)
    console.print(_table(views))
    console.print(f"Written: {out}")
    write_json({label: view.as_dict() for label, view in views.items()}, json_path)


def _table(views: dict[str, Any]) -> Table:
    headings = [
        heading for label, view in views.items() for heading in (label, *(["gold, another"] if view.gold else []))
    ]
    table = plain_table("Attention to all documents together, by layer", "layer", *headings, wrap=True)
    for layer in range(len(next(iter(views.values())).attention)):
        cells = []
        for view in views.values():
            cells.append(f"{float(view.attention[layer].sum()):.3f}")
            if view.gold:
                gold, other = view.gold[layer]
                mark = "retrieves " if layer in view.retrieval_layers else ""
                cells.append(f"{mark}{gold:.3f}, {other:.3f}")
        table.add_row(str(layer), *cells)
    return table
