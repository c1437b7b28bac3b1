"""Train readers for several methods, seeds, ranks and numbers of steps, and compare them with the plain model.

METHOD:OBJECTIVE:STEPS:RANK:SEED names a run. OBJECTIVE is an objective of `ragbias adapt`, or "free", which is "distil"
without answers and gold documents. All runs of a seed have the same examples and the same teacher answers. The method
"none" is the control: the plain model with the same training. An interrupted study resumes. Finished readers are not
trained again, so a new --results can have other questions.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ragbias.adaptation.examples import draw_examples
from ragbias.adaptation.run import write_weights
from ragbias.adaptation.settings import AdaptSettings
from ragbias.adaptation.teacher import BATCH, Lesson, make_lessons
from ragbias.adaptation.training import Reader, train
from ragbias.cache import DocumentCache
from ragbias.data.questions import Question, read_questions
from ragbias.extras import require
from ragbias.files import write_atomically
from ragbias.lm import DebiasedLM
from ragbias.methods import get
from ragbias.prompt import TokenisedPrompt
from ragbias.readers import READER, fingerprint
from studies import arguments_of
from studies.readers import ENDINGS, load_results, measure, read_cases, show_scores

EVERY = 50  # steps between checkpoints
FREE = "free"
OBJECTIVES = ("distil", "labels", "both", FREE)


@dataclass(frozen=True)
class Run:
    """The settings of one training."""

    method: str
    objective: str
    steps: int
    rank: int
    seed: int

    @classmethod
    def parse(cls, text: str) -> Run:
        match = re.fullmatch(rf"(.+):({'|'.join(OBJECTIVES)}):(\d+):(\d+):(\d+)", text)
        if match is None:
            raise SystemExit(f"{text}: expected METHOD:OBJECTIVE:STEPS:RANK:SEED with {', '.join(OBJECTIVES)}")
        method, objective, *numbers = match.groups()
        return cls(method, objective, *map(int, numbers))


@dataclass
class Training:
    """The training examples of one seed: prompts and the teacher's answers."""

    prompts: Sequence[TokenisedPrompt]
    lessons: Sequence[Lesson]


def make_training(lm: DebiasedLM, questions: Sequence[Question], seed: int, count: int, distil: bool) -> Training:
    examples = draw_examples(lm, questions, AdaptSettings(seed=seed, examples=count))
    asked = [(example, example.teacher_prompts(None, random.Random(seed))) for example in examples]
    lessons: list[Lesson] = []
    for begin in range(0, len(asked), BATCH):
        lessons += make_lessons(lm, asked[begin : begin + BATCH], distil)
    return Training([lm.prepare(example.prompt, method="none").tokens for example in examples], lessons)


def train_reader(lm: DebiasedLM, run: Run, training: Training, cache: DocumentCache, folder: Path) -> None:
    """Write the reader of a run to a folder, as ``ragbias adapt`` does, without a receipt."""
    objective: Any = "distil" if run.objective == FREE else run.objective
    settings = AdaptSettings(run.method, objective, steps=run.steps, rank=run.rank, seed=run.seed)
    reader, checkpoint, begun = Reader(lm, run.rank, run.seed), folder / "checkpoint.pt", time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)

    def after_step(step: int, loss: float) -> None:
        if step % 10 == 0:
            print(f"  step {step} loss {loss:.2f}, {time.monotonic() - begun:.0f} s", flush=True)

    method, prompts, lessons = get(run.method), training.prompts, training.lessons
    train(lm, method, reader, prompts, lessons, settings, cache, checkpoint, EVERY, after_step)
    write_weights(require("peft", "adapt"), reader, folder, lm.name)
    model = {"name": lm.name, "fingerprint": fingerprint(lm.model), "dtype": str(lm.model.dtype)}
    record = {"method": run.method, "model": model, "receipt": {"supported": True}}
    write_atomically(folder / READER, json.dumps(record).encode())
    checkpoint.unlink()


def average_seeds(scores: dict[str, list[list[float]]]) -> dict[str, list[list[float]]]:
    """Return scores ``[question][order]`` of the plain model, and of each run, averaged over its seeds."""
    seeds: dict[str, list[list[list[float]]]] = {}
    for name, values in scores.items():
        seeds.setdefault(name.rpartition(":")[0] or name, []).append(values)
    means = {name: [[fmean(map(fmean, each))] for each in zip(*runs, strict=True)] for name, runs in seeds.items()}
    return means | {"none": scores["none"]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("questions", type=Path, help="file of studies.reader_questions")
    parser.add_argument("evaluation", type=Path, help="file as for studies.readers")
    parser.add_argument("--out", type=Path, required=True, help="folder of the readers")
    parser.add_argument("--results", type=Path, required=True, help="file of the results")
    parser.add_argument("--runs", nargs="+", required=True, help="METHOD:OBJECTIVE:STEPS:RANK:SEED")
    parser.add_argument("--model", default="smollm2", help="name or folder")
    parser.add_argument("--dtype", default="auto", help="dtype of the weights")
    parser.add_argument("--examples", type=int, default=400, help="training examples of a seed")
    parser.add_argument("--evaluated", type=int, default=60, help="questions of the evaluation")
    parser.add_argument("--words", type=int, default=40, help="words of each passage of the evaluation")
    parser.add_argument("--prompt", choices=ENDINGS, default="chat", help="with the chat template, or without it")
    options = parser.parse_args(arguments)
    runs = {text: Run.parse(text) for text in options.runs}
    names = ("model", "dtype", "examples", "words", "prompt")
    results = load_results(options.results, {name: getattr(options, name) for name in names}, {})
    lm = DebiasedLM.from_pretrained(options.model, "none", dtype=options.dtype)
    labelled = read_questions(options.questions)
    unlabelled = [replace(question, answers=(), gold=None) for question in labelled]
    cases, cache = read_cases(options.evaluation, options.words, options.evaluated), DocumentCache(memory="4GB")
    trainings: dict[tuple[int, bool, bool], Training] = {}
    for text, run in runs.items():
        folder, free = options.out / text.replace(":", "-"), run.objective == FREE
        if not (folder / READER).exists():
            print(text, flush=True)
            distil = run.objective != "labels"
            key = run.seed, free, distil
            if key not in trainings:
                questions = unlabelled if free else labelled
                trainings = {key: make_training(lm, questions, run.seed, options.examples, distil)}
            train_reader(lm, run, trainings[key], cache, folder)
        method = get(run.method, None, str(folder))
        show_scores(measure(lm, cases, {text: method}, options.prompt, results, options.results))
    print("averaged over seeds")
    show_scores(average_seeds(results["scores"]))


if __name__ == "__main__":
    main()
