"""``ragbias experiment``: the experiments of the methods' papers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from ragbias.checks import CHANNEL
from ragbias.cli.numeric import whole
from ragbias.cli.terminal import MODELS, JsonPath, console, picture, progress, quiet_libraries, status, write_json
from ragbias.evaluation import bounds
from ragbias.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from ragbias.evaluation.experiments.questions import Questions, Track
    from ragbias.evaluation.prompts.samples import Sample
    from ragbias.lm import DebiasedLM
    from ragbias.methods import Method

M = TypeVar("M", bound="Method")

experiment = typer.Typer(help="Repeat an experiment of the papers, on any model, and draw it.")

Model = Annotated[str, typer.Option(help=MODELS)]
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
        lambda lm, samples, track: measure(lm, samples, chosen, track),
        asked, model, f"Attention of the last token to the gold document: {model}, {method}", out, json_path,
        {"method": method},
    )  # fmt: skip


@experiment.command()
def heads(
    out: Out,
    model: Model = "tiny",
    method: Annotated[str, typer.Option(help="ms-poe; ms-poe(alpha=2) for another multiple of the mean.")] = "ms-poe",
    task: Task = None,
    questions: File = None,
    limit: Limit = 20,
    documents: Documents = 10,
    depths: Depths = None,
    seed: Seed = 0,
    json_path: JsonPath = None,
) -> None:
    """Position-awareness of heads, and whether the aware ones find the gold document at any position."""
    from ragbias.evaluation.experiments.heads import measure
    from ragbias.evaluation.experiments.questions import Questions
    from ragbias.methods import MsPoE

    asked, chosen = Questions(task, questions, limit, documents, depths, seed), _of_class(method, model, MsPoE)
    _carry_out(
        lambda lm, samples, track: measure(lm, samples, chosen.alpha, track),
        asked, model, f"Position-awareness of heads, alpha {chosen.alpha:g}: {model}", out, json_path,
        {"alpha": chosen.alpha},
    )  # fmt: skip


@experiment.command()
def top_tokens(
    out: Out,
    model: Model = "tiny",
    method: Annotated[str, typer.Option(help="siw; siw(sigma=1.2,layers=(4,9)) for other ones.")] = "siw",
    task: Task = None,
    questions: File = None,
    limit: Limit = 20,
    documents: Documents = 10,
    depths: Depths = None,
    seed: Seed = 0,
    json_path: JsonPath = None,
) -> None:
    """Which documents hold the tokens that the last token weighs most, and are dense to SIW."""
    from ragbias.evaluation.experiments.questions import Questions
    from ragbias.evaluation.experiments.top_tokens import measure
    from ragbias.methods import SIW

    asked, chosen = Questions(task, questions, limit, documents, depths, seed), _of_class(method, model, SIW)
    _carry_out(
        lambda lm, samples, track: measure(lm, samples, chosen, track),
        asked, model, f"Tokens of highest weight, sigma {chosen.sigma:g}: {model}", out, json_path,
        {"method": method},
    )  # fmt: skip


@experiment.command()
def flow(
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
    """Information flow to the last token by layer: from the gold document, the others, prefix and question."""
    from ragbias.evaluation.experiments.flow import measure
    from ragbias.evaluation.experiments.questions import Questions
    from ragbias.methods.parse import get

    asked, chosen = Questions(task, questions, limit, documents, depths, seed), get(method, model)
    _carry_out(
        lambda lm, samples, track: measure(lm, samples, chosen, track),
        asked, model, f"Information flow to the last token: {model}, {method}", out, json_path,
        {"method": method},
    )  # fmt: skip


@experiment.command()
def factors(
    out: Out,
    model: Model = "tiny",
    method: Annotated[
        str, typer.Option(help="channel-scaling with the model's profile; or in full, with channel, factor, layers.")
    ] = "channel-scaling",
    swept: Annotated[str, typer.Option("--factors", help="Those swept; 1 is the plain model.")] = "1,0.5,0,-0.5,-1",
    layers: Annotated[
        str | None,
        typer.Option(help="Ranges, e.g. 10-25,0-31. Default: the method's, each half of the model, all."),
    ] = None,
    task: Task = None,
    questions: File = None,
    limit: Limit = 10,
    documents: Documents = 10,
    depths: Depths = 5,
    seed: Seed = 0,
    json_path: JsonPath = None,
) -> None:
    """What scaling a channel does, by factor and layers: attention to the gold document, and loss of its answer."""
    from ragbias.evaluation.experiments.factors import factors_of, measure, ranges_of
    from ragbias.evaluation.experiments.questions import Questions
    from ragbias.methods import ChannelScaling

    asked = Questions(task, questions, limit, documents, depths, seed)
    chosen, ranges = _of_class(method, model, ChannelScaling), None if layers is None else ranges_of(layers)
    numbers = factors_of(swept)
    _carry_out(
        lambda lm, samples, track: measure(lm, samples, chosen, numbers, ranges, track),
        asked, model, f"Channel {', '.join(map(str, chosen.channels))} scaled: {model}", out, json_path,
        {"method": method},
    )  # fmt: skip


@experiment.command()
def perturbation(
    out: Out,
    model: Model = "tiny",
    profile: Annotated[
        str | None, typer.Option(help="Whose channel: a file of ragbias calibrate, or a name. Default: the model's.")
    ] = None,
    channel: Annotated[int | None, whole(CHANNEL, "Another channel than the profile's.")] = None,
    strings: Annotated[int, whole(bounds.STRINGS, "Random token strings.")] = 200,
    length: Annotated[
        int | None, whole(bounds.STRING_LENGTH, "Their tokens. Default: 1000, or the model's window if less.")
    ] = None,
    limit: Limit = 20,
    documents: Documents = 10,
    seed: Seed = 0,
    batch_size: Annotated[int, whole(bounds.BATCH, "Strings that run together.")] = 8,
    json_path: JsonPath = None,
) -> None:
    """A positional channel with the causal mask perturbed, with the position ids, and scaled by factors."""
    from dataclasses import replace

    from ragbias.evaluation.experiments.channel_curves import PAPERS_LENGTH
    from ragbias.evaluation.experiments.perturbation import measure
    from ragbias.evaluation.experiments.questions import Questions
    from ragbias.methods.profiles import find

    found = find(profile or model)
    chosen = found if channel is None else replace(found, channel=channel)
    asked = Questions(limit=limit, documents=documents, depths=5, seed=seed)
    _carry_out(
        lambda lm, samples, track: measure(
            lm, chosen, samples, strings, length or min(PAPERS_LENGTH, lm.window), seed, batch_size, track
        ),
        asked, model, f"Perturbations, {model}", out, json_path,
        {"profile": chosen.model, "layers": list(chosen.layers)},
    )  # fmt: skip


def _of_class(method: str, model: str, wanted: type[M]) -> M:
    """A method as typed, which has to be of a class."""
    from ragbias.errors import MethodError
    from ragbias.methods.parse import get

    found = get(method, model)
    if not isinstance(found, wanted):
        raise MethodError(f"method {method!r}; this experiment is of {wanted.name}, with its parameters if you like")
    return found


def _carry_out(
    measure: Callable[[DebiasedLM, list[Sample], Track], Experiment],
    asked: Questions,
    model: str,
    title: str,
    out: Path,
    json_path: Path | None,
    settings: dict[str, Any],
) -> None:
    """Measure, draw and tell; the settings of the experiment go into the JSON."""
    from ragbias.evaluation.model_loading import load_onto_gpu

    quiet_libraries()
    with status("Loading the model"):
        lm = load_onto_gpu(model)
    samples = asked.samples(lm)
    with progress() as bar:
        found = measure(lm, samples, lambda each: bar.track(each, description="prompts"))
    count = len({sample.question for sample in samples})
    with writing(out):
        found.figure(f"{title}, {count} question{'s' * (count > 1)}").savefig(out, dpi=110)
    console.print(found.table())
    console.print(f"Written: {out}")
    write_json(
        {"model": model, "questions": {**asked.as_dict(), "asked": count}, **settings, **found.as_dict()}, json_path
    )
