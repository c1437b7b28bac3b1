"""``ragbias adapt``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ragbias.adaptation.settings import BOUNDS, AdaptSettings, Objective
from ragbias.cli import terminal
from ragbias.cli.terminal import integer
from ragbias.extras import require_all
from ragbias.models.threads import use_idle_cores

Default = AdaptSettings  # class attributes are the defaults


def adapt(
    context: typer.Context,
    model: Annotated[str, typer.Option(help=terminal.MODELS)],
    out: Annotated[Path, typer.Option(help="Folder for the reader.", callback=terminal.check_folder)],
    questions: Annotated[
        list[Path] | None,
        typer.Option(help="JSON lines with question, documents and, if known, answer and gold. May be repeated."),
    ] = None,
    documents: Annotated[
        list[Path] | None,
        typer.Option(help="Texts from which to make questions: a file, or a folder of .txt, .md and .rst files."),
    ] = None,
    method: Annotated[str, typer.Option(help="A method that changes attention, such as pcw.")] = Default.method,
    objective: Annotated[
        Objective,
        typer.Option(help="distil: match the plain model. labels: match known answers. auto: both if possible."),
    ] = Default.objective,
    steps: Annotated[int, integer(BOUNDS["steps"], "Optimiser steps.")] = Default.steps,
    batch: Annotated[int, integer(BOUNDS["batch"], "Examples per step.")] = Default.batch,
    rank: Annotated[int, integer(BOUNDS["rank"], "Rank of the LoRA.")] = Default.rank,
    learning_rate: Annotated[float, typer.Option(min=0, max=1, help="Maximum learning rate.")] = Default.learning_rate,
    max_documents: Annotated[int, integer(BOUNDS["documents"], "Maximum number of documents.")] = Default.documents,
    orders: Annotated[int | None, integer(BOUNDS["orders"], "Document orders to average if gold is unknown.")] = None,
    examples: Annotated[int | None, integer(BOUNDS["examples"], "Default: one per question, but 300 to 800.")] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="File of a prompt with {documents} and {question}. Default: several prompts.")
    ] = None,
    seed: Annotated[int, integer(BOUNDS["seed"], "Seed of examples and weights.")] = Default.seed,
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="Dtype of the weights.")] = "auto",
    restart: Annotated[bool, typer.Option("--restart", help="Delete the folder's reader or training first.")] = False,
    json_path: terminal.JsonPath = None,
    force: terminal.Force = False,
) -> None:
    """Train a reader adapter: a small LoRA that improves a method's answers.

    The adapter only affects the tokens after the documents, so documents remain reusable and answers order-invariant.
    Repeat the command to resume an interrupted training. The exit code is 1 if held-out questions show no improvement.
    """
    require_all("adapt")
    use_idle_cores()
    from ragbias.adaptation.run import adapt as train
    from ragbias.adaptation.run import plan_of
    from ragbias.adaptation.sources import read_sources
    from ragbias.adaptation.training import dtype_of
    from ragbias.data.texts import read_text
    from ragbias.lm import DebiasedLM

    options = {**context.params, "documents": max_documents, "prompt": prompt and read_text(prompt)}
    settings = AdaptSettings(**terminal.select_fields(AdaptSettings, options))
    terminal.console.print(f"Model: {model}")
    terminal.quiet_libraries()
    training_questions = read_sources(questions or (), documents or (), seed)
    plan = plan_of(training_questions, out, settings, restart)  # finds errors before the model is loaded
    terminal.console.print(f"{len(plan.training)} questions to train on, {len(plan.held_out)} held out")
    terminal.console.print(
        f"Objective {plan.settings.objective}, {plan.settings.examples} examples, {steps} steps of {batch}"
    )
    with terminal.status("Loading the model"):
        lm = DebiasedLM.from_pretrained(model, "none", dtype=dtype_of(dtype))
    with terminal.progress() as bar:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int) -> None:
            phase = name.partition(" (")[0]
            if phase not in tasks:
                tasks[phase] = bar.add_task("", total=total, completed=done)
            bar.update(tasks[phase], completed=done, description=name if terminal.console.is_terminal else phase)

        receipt = train(lm, training_questions, out, settings, restart=restart, progress=show)
    _print_receipt(receipt, method)
    use = f"Use it with method={method!r}, reader={str(out)!r}, or --reader {out}."
    unsupported = "No clear gain: the interval of the gain includes zero. Loading this reader gives a warning."
    terminal.console.print(f"Written: {out}. {use if receipt['supported'] else unsupported}")
    terminal.write_json(receipt, json_path)
    if not receipt["supported"]:
        raise typer.Exit(1)


def _print_receipt(receipt: dict[str, Any], method: str) -> None:
    from ragbias.data.intervals import format_figure

    plain = receipt["plain"]
    terminal.console.print(f"\n{receipt['questions']} held-out questions, {receipt['measure']}:")
    worst, best = plain["worst_position"], plain["best_position"]
    positions = "" if best is None else f" (positions {worst:.2f} to {best:.2f})"
    terminal.console.print(f"  plain model {plain['mean']:.2f}{positions}")
    terminal.console.print(f"  {method} {receipt['method']:.2f}, with the reader {receipt['method_with_reader']:.2f}")
    for name, title in (
        ("reader_minus_method", f"with the reader minus {method}"),
        ("reader_minus_plain_mean", "with the reader minus the plain model"),
        ("reader_minus_plain_best_position", "with the reader minus the plain model's best position"),
    ):
        if receipt[name] is not None:
            terminal.console.print(f"  {title}: {format_figure(receipt[name], '+.2f')}")
    if receipt["invariant"] is not None:
        terminal.console.print(f"  same answers in every order: {'yes' if receipt['invariant'] else 'NO'}")
