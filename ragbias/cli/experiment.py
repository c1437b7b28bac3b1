"""``ragbias experiment``: the experiments of the methods' papers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from ragbias.cli.numeric import whole
from ragbias.cli.terminal import JsonPath, console, picture, progress, quiet_libraries, status, write_json
from ragbias.evaluation import bounds
from ragbias.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from ragbias.evaluation.experiments.questions import Questions
    from ragbias.evaluation.tasks.samples import Sample
    from ragbias.lm import DebiasedLM

experiment = typer.Typer(help="Repeat an experiment of the papers, on any model, and draw it.")

Model = Annotated[str, typer.Option(help="'tiny', a hub name or a path.")]
Out = Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.", callback=picture)]
MethodName = Annotated[str, typer.Option(help="Whose attention is read: one that acts on attention, or none.")]
Task = Annotated[
    str | None,
    typer.Option(help="kv or tiny, drawn; mdqa or data, from --questions. Default: data for a file, else by model."),
]
File = Annotated[
    Path | None,
    typer.Option(help="JSON lines of question, documents, answer, gold (an index); for mdqa the official file."),
]
Limit = Annotated[int, whole(bounds.QUESTIONS, "Questions, each asked with its gold document at every position.")]
Documents = Annotated[int, whole(bounds.DRAWN_DOCUMENTS, "Per question, drawn or of mdqa.")]
Depths = Annotated[int | None, whole(bounds.DEPTHS, "Positions of the gold document, evenly spread. Default: all.")]
Seed = Annotated[int, whole(bounds.SEED, "Draws the questions.")]


class Experiment(Protocol):
    """What an experiment measured."""

    def figure(self, title: str) -> Figure:
        """The picture."""

    def table(self) -> Table:
        """What is told on the terminal."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, fit for JSON."""


@experiment.command()
def attention(
    out: Out,
    model: Model = "tiny",
    method: MethodName = "none",
    task: Task = None,
    questions: File = None,
    limit: Limit = 20,
    documents: Documents = 10,
    depths: Depths = None,
    seed: Seed = 0,
    json_path: JsonPath = None,
) -> None:
    """Attention of the last token to the gold document: by its position, by layer and by head."""
    from ragbias.evaluation.experiments.attention import measure
    from ragbias.evaluation.experiments.questions import Questions
    from ragbias.methods.parse import get

    asked, chosen = Questions(task, questions, limit, documents, depths, seed), get(method, model)
    _carry_out(
        lambda lm, samples, done: measure(lm, samples, chosen, done),
        asked, model, f"Attention of the last token to the gold document: {model}, {method}", out, json_path,
        {"method": method},
    )  # fmt: skip


def _carry_out(
    measure: Callable[[DebiasedLM, list[Sample], Callable[[], None]], Experiment],
    asked: Questions,
    model: str,
    title: str,
    out: Path,
    json_path: Path | None,
    settings: dict[str, Any],
    passes: int = 1,
) -> None:
    """Measure, draw and tell.

    Args:
        settings: of the experiment, for the JSON.
        passes: how often each sample is measured.
    """
    from ragbias.evaluation.model_loading import load_onto_gpu

    quiet_libraries()
    with status("Loading the model"):
        lm = load_onto_gpu(model)
    samples = asked.samples(lm)
    with progress() as bar:
        task = bar.add_task("prompts", total=passes * len(samples))
        found = measure(lm, samples, lambda: bar.advance(task))
    count = len({sample.question for sample in samples})
    with writing(out):
        found.figure(f"{title}, {count} question{'s' * (count > 1)}").savefig(out, dpi=110)
    console.print(found.table())
    console.print(f"Written: {out}")
    write_json(
        {"model": model, "questions": {**asked.as_dict(), "asked": count}, **settings, **found.as_dict()}, json_path
    )
