"""The demo for a real model: which bias is found in it, on questions about thirty short notes written for this purpose.

Each question's note stands at several positions among the notes that MiniLM finds nearest to the question. Measured are
the log-probability of the gold answer, which shows a bias on few questions, and how often the answer given holds it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ragbias.errors import RunError
from ragbias.evaluation.demo.notes import NotesQA, notes
from ragbias.evaluation.demo.outcome import conditions
from ragbias.evaluation.demo.retrieval import Index, minilm
from ragbias.evaluation.measures.bootstrap import FEWEST, Scores
from ragbias.evaluation.measures.estimates import curve_figures, minus_plain
from ragbias.evaluation.measures.gold_probability import NATS
from ragbias.evaluation.report.charts import RELATIVE_LOGPROB, overlaid
from ragbias.evaluation.tasks.gold_answers import gold_score
from ragbias.evaluation.tasks.orders import evenly_spread
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, NoMethod, ParallelContextWindows, Pine, RoToR

METHODS = (NoMethod(), Pine(), RoToR(), ParallelContextWindows())


@dataclass(frozen=True)
class NotesSettings:
    """What the demo runs.

    Attributes:
        questions: number of questions, drawn with ``seed``.
        documents: notes in a prompt.
        positions: how many positions of the gold note are tried.
    """

    model: str = "smollm2"
    questions: int = 20
    documents: int = 10
    positions: int = 5
    seed: int = 0


class NotesDemo:
    """Model and questions of one run.

    Raises:
        RunError: there are not so many notes, or too few questions for intervals.
    """

    def __init__(self, settings: NotesSettings) -> None:
        self.settings = settings
        everything = notes()
        if settings.questions > len(everything):
            raise RunError(
                f"questions={settings.questions}, but a model other than tiny is asked about {len(everything)} notes; "
                "ask for fewer"
            )
        if settings.questions < FEWEST:
            raise RunError(f"questions={settings.questions}; intervals need {FEWEST} or more")
        asked = random.Random(settings.seed).sample(everything, settings.questions)
        self.lm = DebiasedLM.from_pretrained(settings.model, "none")
        index = Index([note.document for note in everything], minilm())
        others = []
        for note in asked:
            found = [text for text in index.search(note.question, settings.documents + 1) if text != note.document]
            others.append(found[: settings.documents - 1])
        self.task = NotesQA(self.lm, asked, others, evenly_spread(settings.documents, settings.positions))

    @property
    def steps(self) -> int:
        """Number of prompts that all methods see."""
        return len(METHODS) * self.settings.questions * self.settings.positions


def run(demo: NotesDemo, progress: Callable[[str, int], None]) -> dict[str, Any]:
    """Measure every method; ``progress`` is called with the method's name and the number of prompts done.

    A method that is invariant sees each question in one order, as all orders give it the same bits.

    Returns:
        Plain data: ``settings``, and ``results`` by method, each figure ``[estimate, low, high]`` with a 95% interval,
        paired by question; log-probabilities are in nats.
    """
    begin = time.perf_counter()
    measured = {method.name: _measured(demo, method, progress) for method in METHODS}
    plain = measured[NoMethod.name][0]
    results = {name: _figures(logprobs, right, plain) for name, (logprobs, right) in measured.items()}
    return {"settings": _described(demo, time.perf_counter() - begin), "results": results}


def _measured(demo: NotesDemo, method: Method, progress: Callable[[str, int], None]) -> tuple[Scores, Scores]:
    """Log-probabilities of the gold answer in nats, and whether the answer holds it; by question and position."""
    task, positions = demo.task, list(demo.task.positions)
    logprobs = np.empty((demo.settings.questions, len(positions)))
    right = np.empty_like(logprobs)
    for case in task.cases():
        assert case.gold_position is not None
        question, column = int(case.question), positions.index(case.gold_position)
        if method.invariant and column > 0:
            logprobs[question, column], right[question, column] = logprobs[question, 0], right[question, 0]
        else:
            logprobs[question, column] = gold_score(demo.lm, task, case, method).logprob
            right[question, column] = task.score(case, task.answers(demo.lm, [case], method, 1)[0].prediction)
        progress(method.name, 1)
    names = tuple(f"{index:06}" for index in range(len(logprobs)))
    return Scores(names, tuple(positions), logprobs), Scores(names, tuple(positions), right)


def _figures(logprobs: Scores, right: Scores, plain: Scores) -> dict[str, Any]:
    found, accuracy, minus = curve_figures(logprobs, NATS), curve_figures(right), minus_plain(logprobs, plain)
    assert minus is not None  # all methods are asked the same questions
    return {
        "logprob": {name: found[name] for name in ("mean", "worst", "best", "gap")},
        **{f"minus_plain_{name}": minus[name] for name in ("mean", "worst", "best")},
        "minus_plain_mean_by_position": minus["by_position"],
        "accuracy": accuracy["mean"],
        "accuracy_by_position": accuracy["by_position"],
    }


def _described(demo: NotesDemo, seconds: float) -> dict[str, Any]:
    """Everything needed to repeat the run."""
    return {
        **asdict(demo.settings),
        **conditions(demo.lm),
        "methods": [str(method) for method in METHODS],
        "order": "gold note at the position, the others by their cosine to the question (all-MiniLM-L6-v2)",
        "invariant_methods": "asked in one order, as all give them the same bits",
        "intervals": "95%, bootstrap over questions, paired",
        "seconds": round(seconds, 1),
    }


def figure(outcome: dict[str, Any]) -> Figure:
    """The curves of all methods, relative to the plain model's mean over positions."""
    settings, results = outcome["settings"], outcome["results"]
    title = f"{settings['model']}, {settings['documents']} notes, {settings['questions']} questions"
    curves = {name: each["minus_plain_mean_by_position"] for name, each in results.items()}
    return overlaid({title: curves}, scale=RELATIVE_LOGPROB)
