"""``ragbias inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ragbias import checks as bounds
from ragbias.cli.numeric import whole
from ragbias.cli.terminal import MODELS, JsonPath, console, picture, progress, quiet_libraries, status, write_json
from ragbias.files import writing

if TYPE_CHECKING:
    from ragbias.evaluation.inspect.layer_attention import View


def inspect(
    questions: Annotated[Path, typer.Option(help="JSON lines of question and documents; answer or gold if known.")],
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.", callback=picture)],
    model: Annotated[str, typer.Option(help=MODELS)] = "tiny",
    methods: Annotated[str, typer.Option(help="Comma-separated, one row of panels each.")] = "none,pine",
    intervene: Annotated[
        list[str] | None,
        typer.Option(
            help="One more row for each method, e.g. scale-attention(queries=question,keys=gold,factor=2). Repeatable."
        ),
    ] = None,
    limit: Annotated[int | None, whole(bounds.QUESTIONS, "Take the first questions only.")] = None,
    json_path: JsonPath = None,
) -> None:
    """Show where the prompt's last token looks: its attention to each document, by layer, before and after a method.

    With --intervene also before and after interventions, which act together where + joins them.
    """
    from ragbias.evaluation.data.questions import read_questions
    from ragbias.evaluation.inspect.heat_maps import heat_maps
    from ragbias.evaluation.inspect.layer_attention import inspect as look
    from ragbias.evaluation.model_loading import load_model
    from ragbias.interventions import parse_interventions
    from ragbias.methods.parse import parse_methods

    quiet_libraries()
    asked = read_questions(questions)[:limit]
    chosen = parse_methods(methods, model)
    interventions = {text: parse_interventions(text) for text in intervene or ()}
    with status("Loading the model"):
        lm = load_model(model)
    with progress() as bar:
        task = bar.add_task("", total=len(asked) * len(chosen) * (1 + len(interventions)))
        views = look(lm, asked, chosen, lambda label: bar.update(task, advance=1, description=label), interventions)
    known = next(iter(views.values())).known
    title = f"Attention of the prompt's last token: {model}, {known or len(asked)} questions"
    if known < len(asked):
        console.print(f"The document with the answer is known for {known} of {len(asked)} questions")
    with writing(out):
        heat_maps(views, title).savefig(out, dpi=130)
    console.print(_table(views))
    console.print(f"Written: {out}")
    write_json({label: view.as_dict() for label, view in views.items()}, json_path)


def _table(views: dict[str, View]) -> Table:
    from ragbias.evaluation.report.plain_table import plain_table

    headings = [
        heading
        for label, view in views.items()
        for heading in (label, *(["gold first, middle, last"] if view.gold else []))
    ]
    title = "Attention by layer: to all documents together, and to the gold one by its position"
    table = plain_table(title, "layer", *headings, wrap=True)
    for layer in range(len(next(iter(views.values())).attention)):
        cells = []
        for view in views.values():
            cells.append(f"{float(view.attention[layer].sum()):.3f}")
            if view.gold:
                to_gold = [layers[layer][0] for layers in view.gold_by_position.values()]
                mark = "retrieves " if layer in view.retrieval_layers else ""
                cells.append(mark + "  ".join(f"{gold:.3f}" for gold in to_gold))
        table.add_row(str(layer), *cells)
    return table
