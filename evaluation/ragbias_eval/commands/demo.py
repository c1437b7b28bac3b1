"""``ragbias demo``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

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
    from ragbias_eval.demo import demo_run, notes_run

    prepared: demo_run.Demo | notes_run.NotesDemo
    with terminal.status("Loading the model and embedding the texts"):
        if model == "tiny":
            prepared, make_report, draw = demo_run.Demo(questions or 40, seed), report_tiny, demo_run.draw_figure
        else:
            prepared = notes_run.NotesDemo(model, questions or 20, seed)
            make_report, draw = report_notes, notes_run.draw_figure
    with terminal.progress() as bar:
        outcome = prepared.run(bar)
    terminal.console.print(*make_report(outcome), sep="\n")
    out.mkdir(parents=True, exist_ok=True)
    terminal.write_json(outcome, results)
    with terminal.output(picture):
        draw(outcome).savefig(picture, dpi=130)
    terminal.write_json(outcome, json_path)
    terminal.console.print(f"Written: {results}, {picture}")


def report_tiny(outcome: dict[str, Any]) -> Iterator[Table | str]:
    for documents, results in outcome["results"].items():
        yield _make_bias_table(documents, results)
    questions = outcome["settings"]["questions"]
    rows = [row for results in outcome["results"].values() for row in results.values()]
    points = [point for row in rows for point in row["accuracy_by_position"].values()]
    margin = max(max(high - estimate, estimate - low) for estimate, low, high in points)
    yield (
        f"With {questions} questions, an accuracy may be off by up to {margin:.2f} (the widest 95% interval).\n"
        "flips: questions whose answer depends on the order of the documents; cost: time to the first token.\n"
        "The model is biased because its training data has answers near the ends of prompts (docs/results/tiny.md)."
    )


def report_notes(outcome: dict[str, Any]) -> Iterator[Table | str]:
    from ragbias.data.intervals import format_figure

    yield from make_notes_tables(outcome)
    yield (
        "Log-probability of the gold answer in nats (-0.69: half as probable), accuracy in brackets; 95% intervals.\n"
        f"Plain model, best position minus worst: {format_figure(outcome['results']['none']['logprob']['gap'])}. "
        f"This bias was not trained on purpose.\nThe measurement took {outcome['settings']['seconds']:.0f} s."
    )


def make_notes_tables(outcome: dict[str, Any]) -> list[Table]:
    """Build two tables of at most 80 columns: results by position, and differences from the plain model."""
    from ragbias.data.intervals import format_figure
    from ragbias_eval.report.tables import make_table

    settings, results = outcome["settings"], outcome["results"]
    positions = list(results["none"]["minus_plain_mean_by_position"])
    count, notes = settings["questions"], settings["documents"]
    title = f"{count} questions, {notes} notes: gold answer minus the plain mean, with the answer in note ..."
    by_position = make_table(title, "method", *(str(int(position) + 1) for position in positions))
    against = make_table("Mean minus the plain model's ...", "method", "mean", "worst position", "best position")
    for name, row in results.items():
        minus, accuracy = row["minus_plain_mean_by_position"], row["accuracy_by_position"]
        by_position.add_row(name, *(f"{minus[key][0]:+.2f} ({accuracy[key][0]:.2f})" for key in positions))
        if name != "none":
            against.add_row(name, *(format_figure(row[f"minus_plain_{end}"]) for end in ("mean", "worst", "best")))
    return [by_position, against]


def _make_bias_table(documents: str, results: dict[str, Any]) -> Table:
    from ragbias_eval.report.tables import make_table

    positions = list(next(iter(results.values()))["accuracy_by_position"])
    title = f"{documents} documents: accuracy with the answer in document ..."
    headings = [str(int(position) + 1) for position in positions]
    table = make_table(title, "method", *headings, "mean", "worst", "gap", "flips", "cost")
    for name, row in results.items():
        accuracy = [f"{row['accuracy_by_position'][position][0]:.2f}" for position in positions]
        figures = [f"{row[key][0]:.2f}" for key in ("mean", "worst", "gap")]
        table.add_row(name, *accuracy, *figures, f"{row['flip_rate'][0]:.0%}", f"x{row['prefill_ratio']:.2f}")
    return table
