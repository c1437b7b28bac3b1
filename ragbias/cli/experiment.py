"""``ragbias experiment``: the experiments of the methods' papers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeVar

import typer

from ragbias import checks as bounds
from ragbias.checks import CHANNEL
from ragbias.cli.numeric import whole
from ragbias.cli.terminal import MODELS, JsonPath, console, picture, progress, quiet_libraries, status, write_json
from ragbias.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from ragbias.evaluation.experiments.questions import Track
    from ragbias.evaluation.prompts.samples import Sample
    from ragbias.lm import DebiasedLM
    from ragbias.methods import Method

M = TypeVar("M", bound="Method")

experiment = typer.Typer(help="Repeat an experiment of the papers, on any model, and draw it.")


class Result(Protocol):
    """What an experiment measured."""

    def figure(self, title: str) -> Figure:
        """The picture."""

    def table(self) -> Table:
        """What is told on the terminal."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, fit for JSON."""


class Experiment(NamedTuple):
    """An experiment by its options, before a model is loaded.

    Attributes:
        measure: measures it on the prompts.
        title: of the picture.
        settings: its own, for the JSON.
    """

    measure: Callable[[DebiasedLM, list[Sample], Track], Result]
    title: str
    settings: dict[str, Any]


Plan = Callable[..., Experiment]


def _run(
    planned: Experiment,
    *,
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.", callback=picture)],
    model: Annotated[str, typer.Option(help=MODELS)] = "tiny",
    task: Annotated[
        str | None,
        typer.Option(
            help="kv or tiny, drawn; mdqa or data, from --questions. Default: data for a file, else by model."
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(help="JSON lines of question, documents, answer, gold (an index); for mdqa the official file."),
    ] = None,
    limit: Annotated[
        int, whole(bounds.QUESTIONS, "Questions, each asked with its gold document at every position.")
    ] = 20,
    documents: Annotated[int, whole(bounds.DRAWN_DOCUMENTS, "Per question, drawn or of mdqa.")] = 10,
    depths: Annotated[
        int | None, whole(bounds.DEPTHS, "Positions of the gold document, evenly spread. Default: all.")
    ] = None,
    seed: Annotated[int, whole(bounds.SEED, "Draws the questions.")] = 0,
    json_path: JsonPath = None,
) -> None:
    """Measure, draw and tell; its parameters are the options that experiments share."""
    from ragbias.evaluation.experiments.questions import Questions
    from ragbias.evaluation.model_loading import load_onto_gpu

    asked = Questions(task, questions, limit, documents, depths, seed)
    quiet_libraries()
    with status("Loading the model"):
        lm = load_onto_gpu(model)
    samples = asked.samples(lm)
    with progress() as bar:
        found = planned.measure(lm, samples, lambda each: bar.track(each, description="prompts"))
    count = len({sample.question for sample in samples})
    with writing(out):
        found.figure(f"{planned.title}, {count} question{'s' * (count > 1)}").savefig(out, dpi=110)
    console.print(found.table())
    console.print(f"Written: {out}")
    about = {"model": model, "questions": {**asked.as_dict(), "asked": count}, **planned.settings}
    write_json({**about, **found.as_dict()}, json_path)


SHARED = dict(inspect.signature(_run, eval_str=True).parameters)
del SHARED["planned"]


def _command(*without: str, **defaults: Any) -> Callable[[Plan], Plan]:
    """Make a command of a function that plans an experiment: it has the function's own options and the shared ones.

    Args:
        without: shared options that it does not have.
        defaults: of shared options, where they differ; of those that it does not have, their values.
    """
    offered = {
        name: option.replace(default=defaults.get(name, option.default))
        for name, option in SHARED.items()
        if name not in without
    }

    def register(plan: Plan) -> Plan:
        planning = inspect.signature(plan, eval_str=True).parameters
        options = {name: option for name, option in planning.items() if name not in SHARED} | offered

        def command(**given: Any) -> None:
            planned = plan(**{name: given[name] for name in planning})
            _run(planned, **defaults | {name: given[name] for name in offered})

        command.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
        command.__annotations__ = {name: option.annotation for name, option in options.items()}
        command.__name__, command.__doc__ = plan.__name__, plan.__doc__
        experiment.command()(command)
        return plan

    return register


MethodName = Annotated[str, typer.Option(help="Whose attention is read: one that acts on attention, or none.")]


@_command()
def attention(model: str, method: MethodName = "none") -> Experiment:
    """Attention of the last token to the gold document: by its position, by layer and by head."""
    from ragbias.evaluation.experiments.attention import measure
    from ragbias.methods.parse import get

    chosen = get(method, model)
    return Experiment(
        lambda lm, samples, track: measure(lm, samples, chosen, track),
        f"Attention of the last token to the gold document: {model}, {method}",
        {"method": method},
    )


@_command()
def heads(
    model: str,
    method: Annotated[str, typer.Option(help="ms-poe; ms-poe(alpha=2) for another multiple of the mean.")] = "ms-poe",
) -> Experiment:
    """Position-awareness of heads, and whether the aware ones find the gold document at any position."""
    from ragbias.evaluation.experiments.heads import measure
    from ragbias.methods import MsPoE

    chosen = _of_class(method, model, MsPoE)
    return Experiment(
        lambda lm, samples, track: measure(lm, samples, chosen.alpha, track),
        f"Position-awareness of heads, alpha {chosen.alpha:g}: {model}",
        {"alpha": chosen.alpha},
    )


@_command()
def top_tokens(
    model: str,
    method: Annotated[str, typer.Option(help="siw; siw(sigma=1.2,layers=(4,9)) for other ones.")] = "siw",
) -> Experiment:
    """Which documents hold the tokens that the last token weighs most, and are dense to SIW."""
    from ragbias.evaluation.experiments.top_tokens import measure
    from ragbias.methods import SIW

    chosen = _of_class(method, model, SIW)
    return Experiment(
        lambda lm, samples, track: measure(lm, samples, chosen, track),
        f"Tokens of highest weight, sigma {chosen.sigma:g}: {model}",
        {"method": method},
    )


@_command()
def flow(model: str, method: MethodName = "none") -> Experiment:
    """Information flow to the last token by layer: from the gold document, the others, prefix and question."""
    from ragbias.evaluation.experiments.flow import measure
    from ragbias.methods.parse import get

    chosen = get(method, model)
    return Experiment(
        lambda lm, samples, track: measure(lm, samples, chosen, track),
        f"Information flow to the last token: {model}, {method}",
        {"method": method},
    )


@_command(limit=10, depths=5)
def factors(
    model: str,
    method: Annotated[
        str, typer.Option(help="channel-scaling with the model's profile; or in full, with channel, factor, layers.")
    ] = "channel-scaling",
    swept: Annotated[str, typer.Option("--factors", help="Those swept; 1 is the plain model.")] = "1,0.5,0,-0.5,-1",
    layers: Annotated[
        str | None,
        typer.Option(help="Ranges, e.g. 10-25,0-31. Default: the method's, each half of the model, all."),
    ] = None,
) -> Experiment:
    """What scaling a channel does, by factor and layers: attention to the gold document, and loss of its answer."""
    from ragbias.evaluation.experiments.factors import factors_of, measure, ranges_of
    from ragbias.methods import ChannelScaling

    chosen, ranges = _of_class(method, model, ChannelScaling), None if layers is None else ranges_of(layers)
    numbers = factors_of(swept)
    return Experiment(
        lambda lm, samples, track: measure(lm, samples, chosen, numbers, ranges, track),
        f"Channel {', '.join(map(str, chosen.channels))} scaled: {model}",
        {"method": method},
    )


@_command("task", "questions", "depths", depths=5)
def perturbation(
    model: str,
    seed: int,
    profile: Annotated[
        str | None, typer.Option(help="Whose channel: a file of ragbias calibrate, or a name. Default: the model's.")
    ] = None,
    channel: Annotated[int | None, whole(CHANNEL, "Another channel than the profile's.")] = None,
    strings: Annotated[int, whole(bounds.STRINGS, "Random token strings.")] = 200,
    length: Annotated[
        int | None, whole(bounds.STRING_LENGTH, "Their tokens. Default: 1000, or the model's window if less.")
    ] = None,
    batch_size: Annotated[int, whole(bounds.BATCH, "Strings that run together.")] = 8,
) -> Experiment:
    """A positional channel with the causal mask perturbed, with the position ids, and scaled by factors."""
    from dataclasses import replace

    from ragbias.evaluation.experiments.channel_curves import PAPERS_LENGTH
    from ragbias.evaluation.experiments.perturbation import measure
    from ragbias.methods.profiles import find, of_model

    found = of_model(model) if profile is None else find(profile)
    chosen = found if channel is None else replace(found, channel=channel)
    return Experiment(
        lambda lm, samples, track: measure(
            lm, chosen, samples, strings, length or min(PAPERS_LENGTH, lm.window), seed, batch_size, track
        ),
        f"Perturbations, {model}",
        {"profile": chosen.model, "layers": list(chosen.layers)},
    )


def _of_class(method: str, model: str, wanted: type[M]) -> M:
    """A method as typed, which has to be of a class."""
    from ragbias.errors import MethodError
    from ragbias.methods.parse import get

    found = get(method, model)
    if not isinstance(found, wanted):
        raise MethodError(f"method {method!r}; this experiment is of {wanted.name}, with its parameters if you like")
    return found
