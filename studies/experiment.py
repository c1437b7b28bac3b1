"""Questions, options, pictures and output of all experiments.

Each question runs with its gold document at every position. ``python -m studies.NAME --help`` lists the options.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table
from torch import Tensor

from ragbias import limits
from ragbias.checks import check_choice
from ragbias.cli.terminal import console, progress, quiet_libraries, write_json
from ragbias.data.intervals import MIN_QUESTIONS, Estimate
from ragbias.data.questions import read_questions
from ragbias.errors import MethodError, RagBiasError, RunError
from ragbias.lm import DebiasedLM
from ragbias.methods import AttentionMethod, Method, NoMethod, get
from ragbias_eval.calibration.samples import (
    Sample,
    as_user_message,
    data_prompt,
    draw_kv_question,
    draw_tiny_question,
    kv_prompt,
    make_sample,
    make_samples,
    tiny_prompt,
)
from ragbias_eval.measures.bootstrap import Scores, compute_curve
from ragbias_eval.report.figures import (
    PALE,
    Style,
    draw_line,
    escape_dollars,
    make_canvas,
    make_styles,
    save_figure,
)
from ragbias_eval.tasks.mdqa import MultiDocumentQA
from ragbias_eval.tasks.task import spread_positions
from studies import arguments_of
from studies.layer_attention import check_equally_many
from studies.pictures import COLOURS, add_title, save_pair

MOST_TICKS = 8
NARROW = 5  # width of a picture in inches, readable at 420 pixels
FEW = 4  # maximum number of layers that are listed individually
M = TypeVar("M", bound=Method)

DRAWN = {"kv": (draw_kv_question, kv_prompt), "tiny": (draw_tiny_question, tiny_prompt)}
TASKS = (*DRAWN, "mdqa", "data")
Track = Callable[[Sequence[Any]], Iterable[Any]]  # yields its items unchanged and shows the progress


@dataclass(frozen=True)
class Questions:
    """The questions of an experiment.

    Attributes:
        task: ``"kv"`` and ``"tiny"`` draw questions. ``"mdqa"`` reads a file of Lost in the Middle, ``"data"`` reads
            JSON lines with question, documents, answer and gold. None: chosen by file and model.
        file: file for ``"mdqa"`` and ``"data"``.
        limit: number of questions.
        documents: documents per question, except for ``"data"``, whose file decides.
        depths: number of evenly spread positions of the gold document; None: all positions.
        seed: seed for drawing questions.

    Raises:
        RunError, MethodError: the task is unknown, or does not match the file.
    """

    task: str | None = None
    file: Path | None = None
    limit: int = 20
    documents: int = 10
    depths: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task is None:
            return
        check_choice("experiment: task", self.task, TASKS)
        if self.task in DRAWN and self.file is not None:
            raise RunError(f"the task {self.task} draws its own questions; leave out {self.file}, or the task")
        if self.task not in DRAWN and self.file is None:
            raise RunError(f"the task {self.task} reads questions from a file; name it with --questions")

    def samples(self, lm: DebiasedLM) -> list[Sample]:
        """Make the prompts, grouped by question.

        Raises:
            DataError: a line of the file has another format, or the numbers of documents differ.
            MethodError: a prompt is longer than the model's window.
        """
        task = self.task or ("data" if self.file else "tiny" if lm.name == "tiny" else "kv")
        depths = self.depths or int(limits.DEPTHS.most)
        if task in DRAWN:
            question, text = DRAWN[task]
            rng = random.Random(f"experiment {task} {self.seed}")
            return make_samples(lm, [question(rng, self.documents) for _ in range(self.limit)], text, depths)
        assert self.file is not None  # checked above
        if task == "mdqa":
            return self._official(lm, self.file, depths)
        questions = read_questions(self.file, labelled=True)[: self.limit]
        check_equally_many(questions, f"{self.file}: the questions")
        return make_samples(lm, questions, data_prompt, depths)

    def _official(self, lm: DebiasedLM, file: Path, depths: int) -> list[Sample]:
        positions = tuple(spread_positions(self.documents, depths))
        task = MultiDocumentQA(
            data=(file,), documents=(self.documents,), positions=positions, limit=self.limit, seed=self.seed
        )
        numbers: dict[str, int] = {}
        samples = []
        for case in task.cases():
            assert case.gold_position is not None
            text, answer = as_user_message(lm, case.text, case.answers[0])
            number = numbers.setdefault(case.question, len(numbers))
            samples.append(make_sample(lm, text, answer, case.documents, case.gold_position, number))
        return samples

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON, with only the name of the file."""
        return {**vars(self), "file": self.file and self.file.name}


def arrange_by_question(samples: Sequence[Sample], measured: Sequence[Tensor]) -> tuple[list[int], Tensor]:
    """Arrange measurements by question and the gold document's position. Return the positions and ``[Q, P, ...]``."""
    positions = sorted({sample.gold for sample in samples})
    order = sorted(range(len(samples)), key=lambda index: (samples[index].question, samples[index].gold))
    return positions, torch.stack([measured[index] for index in order]).unflatten(0, (-1, len(positions)))


def intervals(values: Tensor) -> list[Estimate]:
    """Compute means over questions ``[Q, X]`` with bootstrap intervals: ``[mean, low, high]`` for each column."""
    each = values.double().numpy()
    scores = Scores(tuple(map(str, range(len(each)))), tuple(range(each.shape[1])), each)
    return [interval.as_list() for interval in compute_curve(scores)["by_position"]]


def check_acts_on_attention(method: Method) -> None:
    """Raise ``MethodError`` for a method that does not act on the model's attention."""
    if not isinstance(method, AttentionMethod) and method != NoMethod():
        raise MethodError(f"{method.name} does not change attention; expected none or a method that acts on attention")


class Result:
    """Base class of an experiment's measurements. The first axis of each tensor is the question."""

    def figure(self) -> Figure:
        raise NotImplementedError

    def table(self) -> Table:
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON, tensors as means over questions."""
        return {
            name: value.mean(0).tolist() if isinstance(value, Tensor) else value for name, value in vars(self).items()
        }


def parser(documentation: str | None, method: str | None = None, **defaults: Any) -> argparse.ArgumentParser:
    """Create a parser with the options that all experiments share.

    Args:
        documentation: docstring of the experiment's module.
        method: default of ``--method``; None: the experiment has no such option.
    """
    made = arguments_of(documentation)
    made.add_argument("--model", required=True, help="tiny, smollm2, a hub name, a folder or a GGUF file")
    made.add_argument("--out", type=Path, required=True, help="picture to write: .png, .svg or .pdf")
    made.add_argument("--themes", action="store_true", help="write OUT-light.svg and OUT-dark.svg instead")
    made.add_argument("--json", type=Path, help="also write the figures to this file")
    if method is not None:
        made.add_argument("--method", default=method, help="method, with parameters in brackets if any")
    made.add_argument("--task", help="kv and tiny draw questions, mdqa and data read a file; default: by model")
    made.add_argument("--questions", type=Path, help="JSON lines, or the official file for mdqa")
    made.add_argument("--limit", type=int, default=20, help="number of questions")
    made.add_argument("--documents", type=int, default=10, help="documents per question")
    made.add_argument("--depths", type=int, help="evenly spread positions of the gold document; default: all")
    made.add_argument("--seed", type=int, default=0, help="seed of the questions")
    made.set_defaults(**defaults)
    return made


def run(
    options: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    measure: Callable[[DebiasedLM, list[Sample], Track, argparse.Namespace], Result],
    title: str,
) -> None:
    """Measure, draw, print and write an experiment.

    Args:
        title: title of the picture. ``{option}`` is replaced by the value of the option. The second line also gets the
            number of questions.
    """
    chosen = options.parse_args(arguments)
    try:
        questions = Questions(chosen.task, chosen.questions, chosen.limit, chosen.documents, chosen.depths, chosen.seed)
        quiet_libraries()
        lm = DebiasedLM.from_pretrained(chosen.model, method="none")
        if torch.cuda.is_available():
            torch.nn.Module.cuda(lm.model)
        samples = questions.samples(lm)
        with progress() as bar:
            result = measure(lm, samples, lambda items: bar.track(items, description="prompts"), chosen)
        count = len({sample.question for sample in samples})
        figure = result.figure()
        questions_shown = f"{count} question{'s' * (count > 1)}" + ", 95% intervals" * (count >= MIN_QUESTIONS)
        add_title(figure, f"{title.format(**vars(chosen))}, {questions_shown}")
        (save_pair if chosen.themes else save_figure)(figure, chosen.out)
        console.print(result.table())
        console.print(f"Written: {chosen.out}")
        about = {"model": chosen.model, "method": getattr(chosen, "method", None)}
        write_json({**about, "questions": {**questions.as_dict(), "evaluated": count}, **result.as_dict()}, chosen.json)
    except RagBiasError as error:
        options.exit(2, f"{error}\n")


def make_method(name: str, model: str, method_class: type[M]) -> M:
    """Make the named method. Raise ``MethodError`` if the method is of another class."""
    method = get(name, model)
    if not isinstance(method, method_class):
        raise MethodError(f"method {name!r}; expected {method_class.name}, optionally with parameters")
    return method


def format_layers(layers: Sequence[int]) -> str:
    """Describe layers: ``layer 3``, ``layers 2 to 8``, ``layers 2, 5`` or ``6 of layers 2 to 9``."""
    first, last = layers[0], layers[-1]
    if first == last:
        return f"layer {first}"
    if len(layers) == last - first + 1:
        return f"layers {first} to {last}"
    listed = f"layers {', '.join(map(str, layers))}"
    return listed if len(layers) <= FEW else f"{len(layers)} of layers {first} to {last}"


def draw_heat_map(
    axis: Axes, values: Tensor, columns: Sequence[object], title: str, x: str, label: str, y: str = "layer",
    lowest: float | None = 0,
) -> None:  # fmt: skip
    """Draw ``[rows, columns]`` as a heat map with a colour bar. Larger values contrast more with the page.

    Args:
        columns: names of the columns.
        label: label of the colour bar.
        lowest: value with which the colours begin; None: the smallest value.
    """
    rows = len(values)
    image = axis.imshow(values.numpy(), cmap=COLOURS, vmin=lowest, aspect="auto", interpolation="nearest")
    shown = range(0, len(columns), -(-len(columns) // MOST_TICKS))
    axis.set_xticks(shown, [str(columns[column]) for column in shown])
    axis.set_yticks(range(0, rows, -(-rows // MOST_TICKS)))
    axis.grid(visible=False)
    axis.set_title(escape_dollars(title), fontsize=10)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    assert axis.figure is not None
    axis.figure.colorbar(image, ax=axis, pad=0.03, aspect=30, label=label, ticks=MaxNLocator(5))


def draw_curves(
    axis: Axes, xs: Sequence[float], lines: Mapping[str, Tensor], title: str, x: str, y: str,
    level: tuple[str, float] | None = None, from_zero: bool = True, styles: Mapping[str, Style] | None = None,
) -> None:  # fmt: skip
    """Draw each line's mean over questions, ``[Q, len(xs)]``, with intervals. ``level`` is a horizontal line."""
    styles = styles or make_styles(lines)
    for label, values in lines.items():
        draw_line(axis, xs, intervals(values), styles[label], label)
    if level is not None:
        axis.axhline(level[1], color=PALE, linewidth=1, label=escape_dollars(level[0]))
    axis.set_title(escape_dollars(title), fontsize=10)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.xaxis.set_major_locator(MaxNLocator(MOST_TICKS, integer=all(float(at).is_integer() for at in xs)))
    if from_zero:
        low, high = axis.get_ylim()
        axis.set_ylim(min(0, low), high)


def make_page(panels: int) -> tuple[Figure, list[Axes]]:
    """Create a picture with one column of panels."""
    figure, axes = make_canvas(panels, columns=1, height=2.4)
    figure.set_figwidth(NARROW)
    return figure, axes
