"""``ragbias demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragbias import limits
from ragbias.checks import Bounds
from ragbias.cli import terminal
from ragbias.cli.terminal import integer
from ragbias.models.threads import use_idle_cores


def demo(
    model: Annotated[str, typer.Option(help=terminal.MODELS)],
    questions: Annotated[
        int | None,
        integer(Bounds(5, 10_000), "Questions. Each runs with its answer at every position. Default: 40 (tiny) or 20."),
    ] = None,
    seed: Annotated[int, integer(limits.SEED, "Seed of corpus and questions.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results.json and bias.png. Default: demo-output/MODEL.", callback=terminal.check_folder
        ),
    ] = None,
    json_path: terminal.JsonPath = None,
    force: terminal.Force = False,
) -> None:
    """Measure position bias with and without several methods, on questions about tiny's world or short notes."""
    terminal.console.print(f"Model: {model}")
    out = out or Path("demo-output") / Path(model).name
    results, picture = out / "results.json", out / "bias.png"
    for path in (results, picture):
        terminal.check_overwritable(path, force)
    use_idle_cores()
    terminal.quiet_libraries()
    from ragbias_eval.demo import NotesDemo, TinyDemo

    with terminal.status("Loading the model and embedding the texts"):
        prepared = TinyDemo(questions or 40, seed) if model == "tiny" else NotesDemo(model, questions or 20, seed)
    with terminal.progress() as bar:
        outcome = prepared.run(bar)
    terminal.console.print(*prepared.report(outcome), sep="\n")
    out.mkdir(parents=True, exist_ok=True)
    terminal.write_json(outcome, results)
    with terminal.output(picture):
        prepared.draw(outcome).savefig(picture, dpi=130)
    terminal.write_json(outcome, json_path)
    terminal.console.print(f"Written: {results}, {picture}")
