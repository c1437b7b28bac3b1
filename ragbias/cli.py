"""The command line: ``ragbias demo | ask | speed | calibrate | methods``."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ragbias.errors import RagBiasError

app = typer.Typer(
    help="Training-free removal of position bias for RAG with Hugging Face models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()


def _in_a_folder(path: Path | None) -> Path | None:
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is no folder; create it first")
    return path


JsonPath = Annotated[
    Path | None, typer.Option("--json", help="Write the results to this file as well.", callback=_in_a_folder)
]


def main() -> None:
    """Run the command line; a refused input ends with exit code 2 and one line."""
    try:
        _quiet()
        app()
    except (RagBiasError, OSError, ImportError, ValueError, TypeError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"ragbias: {message[:600]}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("ragbias: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


@app.command()
def demo(
    model: Annotated[str, typer.Option(help="'tiny', a hub name or a path.")] = "tiny",
    questions: Annotated[int, typer.Option(min=2, help="Held-out questions, each asked at every position.")] = 40,
    seed: Annotated[int, typer.Option(help="Draws corpus and questions.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for results.json and bias.png.")] = Path("demo-output"),
    json_path: JsonPath = None,
) -> None:
    """Measure position bias before and after each method, on a FAISS index with held-out questions."""
    from ragbias.evaluation import demo as evaluation

    settings = evaluation.Settings(model=model, questions=questions, seed=seed)
    with _status("Loading the model, embedding the corpus"):
        prepared = evaluation.Demo(settings)
    methods = evaluation.demo_methods(model)
    if not any(method.name == "channel-scaling" for method in methods):
        console.print(f"channel-scaling is left out: it has no profile for {model!r}")
    with _progress() as progress:
        task = progress.add_task("", total=len(methods) * len(settings.documents) * settings.positions * questions)
        outcome = evaluation.run(prepared, lambda name, count: progress.update(task, advance=count, description=name))
    for documents, results in outcome["results"].items():
        console.print(_bias_table(documents, results))
    console.print(
        "flips: questions whose answer depends on the order of the documents; cost: time to the first token.\n"
        "The model learned its bias from training data made to place the answers at the ends (docs/tiny.md)."
    )
    evaluation.save(outcome, out)
    console.print(f"Written: {out / 'results.json'}, {out / 'bias.png'}\n")
    _frameworks(prepared, evaluation.telling_question(prepared))
    _write_json({key: outcome[key] for key in ("settings", "results")}, json_path)


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    documents: Annotated[Path, typer.Option(help="A text file, or a folder of .txt, .md and .rst files.")],
    model: Annotated[str, typer.Option(help="'tiny', a hub name or a path.")] = "tiny",
    method: Annotated[str, typer.Option(help="See `ragbias methods`.")] = "pine",
    k: Annotated[int, typer.Option(min=1, help="Chunks to retrieve.")] = 10,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    json_path: JsonPath = None,
) -> None:
    """Answer a question from your own text files: FAISS, MiniLM and a model with a method."""
    from ragbias.evaluation.ask import ask as answer
    from ragbias.evaluation.ask import read_chunks
    from ragbias.lm import DebiasedLM

    if not question.strip():
        raise typer.BadParameter("the question is empty")
    chunks = read_chunks(documents)
    with _status("Loading the model, embedding the documents"):
        lm = DebiasedLM.from_pretrained(model, method=method, dtype="auto")
        generation, used = answer(lm, question, chunks, k, max_new_tokens)
    console.print(generation.text.strip() or "(the model gave no answer)", markup=False)
    report = generation.report
    about = f"{report.method_ran} over {report.n_found} of {len(chunks)} chunks"
    console.print(" ".join(filter(None, (f"{about}.", report.reason))), style="dim", markup=False)
    _write_json({"text": generation.text, "report": report.as_dict(), "documents": used}, json_path)


@app.command()
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
    with _status("Building the model"):
        model = random_llama(layers)
    with _progress() as progress:
        task = progress.add_task("", total=(rounds + 1) * (len(chosen) + 1))

        def show(name: str) -> None:
            progress.update(task, advance=1, description=f"timing {name}")

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
    _write_json({name: cost.as_dict() for name, cost in costs.items()}, json_path)


@app.command()
def calibrate(
    model: Annotated[str, typer.Option(help="'tiny', a hub name or a path.")],
    out: Annotated[Path, typer.Option(help="The profile to write, for ChannelScaling.from_profile; a plot beside it.")],
    task: Annotated[
        str | None, typer.Option(help="Calibration set: kv (JSON key-value retrieval) or tiny. Default: by the model.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Calibration set: JSON lines of question, documents, answer, gold (an index).")
    ] = None,
    strings: Annotated[int, typer.Option(help="Random token strings; 2000 in the paper.")] = 500,
    length: Annotated[int | None, typer.Option(help="Their tokens. Default: 1000, or the window if less.")] = None,
    questions: Annotated[int | None, typer.Option(help="Of a drawn set. Default: 100, tiny 40.")] = None,
    documents: Annotated[
        int | None, typer.Option(help="Per question of a drawn set. Default: by task and window.")
    ] = None,
    depths: Annotated[int, typer.Option(help="Places of the gold document, evenly spread.")] = 5,
    seed: Annotated[int, typer.Option(help="Draws strings and questions.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Sequences that run together.")] = 8,
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what an interrupted calibration left.")
    ] = False,
    json_path: JsonPath = None,
) -> None:
    """Find the channel that carries the position in a model, and how to scale it; goes on where it was interrupted.

    Ends with exit code 1 if no channel is found, or if the best setting does not clearly lower the loss.
    """
    from ragbias.calibration import report
    from ragbias.calibration.channel_search import NoPositionalChannelError
    from ragbias.calibration.partial import unfinished
    from ragbias.calibration.settings import Settings

    settings = Settings(
        model=model,
        task=task,
        data=data,
        strings=strings,
        length=length,
        questions=questions,
        documents=documents,
        depths=depths,
        seed=seed,
        batch_size=batch_size,
    )
    try:
        with _progress() as progress:
            profile = report.run(settings, out, restart, progress)
    except NoPositionalChannelError as error:
        console.print(f"No profile is written: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        if unfinished(out):
            console.print("Stopped. The same command goes on from here; with --restart it starts anew.")
        raise
    report.tell(profile, console)
    console.print(f"Written: {out}")
    _write_json(profile.as_dict(), json_path)
    if not profile.measured["beats_plain"]:
        raise typer.Exit(1)


@app.command("methods")
def list_methods(
    name: Annotated[str | None, typer.Argument(help="One method, in detail.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of the docs.")] = False,
    json_path: JsonPath = None,
) -> None:
    """List the methods: what each needs, promises, touches and costs."""
    from ragbias.matrix import HEADINGS, as_markdown, family_notes, matrix
    from ragbias.methods import method_class

    rows = matrix()
    if markdown:
        print(as_markdown(), end="")
    elif name is not None:
        method_class(name)
        (row,) = (row for row in rows if row.name == name)
        console.print(f"{row.constructor}\n", style="bold", markup=False)
        console.print(row.documentation, markup=False)
        for heading, cell in zip(HEADINGS[1:], row.cells()[1:], strict=True):
            console.print(f"{heading}: {cell}", markup=False)
    else:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold underline")
        for heading in HEADINGS[:6]:
            table.add_column(heading, no_wrap=True)
        for row in rows:
            table.add_row(*row.cells()[:6])
        console.print(table)
        console.print(f"\n{family_notes()}\n`ragbias methods NAME`: parameters, what it does, cost and source.")
    _write_json({row.name: row.as_dict() for row in rows}, json_path)


def _quiet() -> None:
    """Keep the libraries' own progress bars and advice off the terminal; their errors still come through."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _bias_table(documents: str, results: dict[str, Any]) -> Table:
    positions = list(next(iter(results.values()))["accuracy_by_position"])
    title = f"{documents} documents: accuracy with the answer in document ..."
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), header_style="bold underline")
    table.add_column("method", no_wrap=True)
    for column in (*positions, "mean", "worst", "gap", "flips", "cost"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in results.items():
        accuracy = [f"{row['accuracy_by_position'][position]:.2f}" for position in positions]
        figures = [f"{row[key]:.2f}" for key in ("mean", "worst", "gap")]
        table.add_row(name, *accuracy, *figures, f"{row['flip_rate']:.0%}", f"x{row['prefill_ratio']:.2f}")
    return table


def _frameworks(prepared: Any, question: Any) -> None:
    """One question through each installed framework's own chain, in both orders of the documents."""
    from ragbias.evaluation.frameworks import ask_in_both_orders

    console.print("The first question whose plain answer changes with the order, through the frameworks' own chains:")
    table = Table(title=f"{question.question}  (right: {question.answer})", box=SIMPLE_HEAD)
    for column in ("framework", "method", "as retrieved", "reversed", "answer"):
        table.add_column(column)
    for framework, method, forward, backward in ask_in_both_orders(prepared, question):
        table.add_row(framework, method, forward, backward, "same" if forward == backward else "changed")
    console.print(table)


class _Lines(Progress):
    """A progress bar; where there is no terminal to draw it on, a line for each new description."""

    def update(self, task_id: TaskID, **changes: Any) -> None:
        description = changes.get("description")
        if not self.console.is_terminal and description not in (None, self._tasks[task_id].description):
            self.console.print(f"{description} ...")
        super().update(task_id, **changes)


def _progress() -> Progress:
    return _Lines(
        TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def _status(text: str) -> AbstractContextManager[Any]:
    """A spinner, or a line where there is no terminal to draw it on."""
    if console.is_terminal:
        return console.status(f"{text} ...")
    console.print(f"{text} ...")
    return nullcontext()


def _write_json(data: Any, path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(data, indent=2) + "\n")
