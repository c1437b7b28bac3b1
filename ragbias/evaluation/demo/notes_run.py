"""The demo for a real model: its bias on questions about thirty short made-up notes (``notes.jsonl``, CC0).

The note with the answer is placed at several positions among the notes that MiniLM finds nearest to the question. The
demo measures the log-probability of the gold answer, which shows a bias with few questions, and the accuracy.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.progress import Progress

from ragbias.errors import RunError
from ragbias.evaluation.demo.shared import GoldQuestion, Index, StockQA, conditions
from ragbias.evaluation.measures.bootstrap import FEWEST, Scores
from ragbias.evaluation.measures.estimates import NATS, curve_figures, minus_plain
from ragbias.evaluation.measures.metrics import best_subspan_em
from ragbias.evaluation.report.charts import before_and_after
from ragbias.evaluation.tasks.orders import evenly_spread
from ragbias.evaluation.tasks.task import gold_score
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, NoMethod, ParallelContextWindows, Pine, RoToR

METHODS = (NoMethod(), Pine(), RoToR(), ParallelContextWindows())


@dataclass(frozen=True)
class Note:
    """A text, a question about it, the beginning of the answer sentence, and the words that complete it.

    The prompt includes the beginning, because a model that writes whole sentences gives a bare word no probability.
    """

    title: str
    text: str
    question: str
    begin: str
    answer: str

    @property
    def document(self) -> str:
        return f"{self.title}\n{self.text}"


def notes() -> list[Note]:
    """Read all notes. They are made up, so that a model cannot answer from memory."""
    lines = (resources.files(__package__) / "notes.jsonl").read_text(encoding="utf-8").splitlines()
    return [Note(**json.loads(line)) for line in lines]


class NotesDemo:
    """Model and questions of one run.

    Args:
        questions: number of questions, drawn with ``seed``.
        documents: number of notes in a prompt.
        positions: number of positions of the gold note.

    Raises:
        RunError: more questions than notes, or too few for intervals.
    """

    def __init__(self, model: str, questions: int = 20, seed: int = 0, documents: int = 10, positions: int = 5) -> None:
        all_notes = notes()
        if questions > len(all_notes):
            raise RunError(
                f"questions={questions}, but the demo of a model other than tiny has {len(all_notes)} notes; use fewer"
            )
        if questions < FEWEST:
            raise RunError(f"questions={questions}; expected at least {FEWEST}, for intervals")
        sizes = {"questions": questions, "documents": documents, "positions": positions}
        self.settings = {"model": model, **sizes, "seed": seed}
        self.lm = DebiasedLM.from_pretrained(model, "none")
        index = Index([note.document for note in all_notes])
        drawn = []
        for note in random.Random(seed).sample(all_notes, questions):
            others = [text for text in index.search(note.question, documents + 1) if text != note.document]
            drawn.append(GoldQuestion(note.question, note.document, others[: documents - 1], note.answer, note.begin))
        self.task = StockQA(self.lm, drawn, evenly_spread(documents, positions), best_subspan_em)


def run(demo: NotesDemo, bar: Progress) -> dict[str, Any]:
    """Measure every method. An invariant method runs in one order, because all orders give bit-identical answers.

    Returns:
        Plain data: ``settings``, and ``results`` by method. Figures are ``[estimate, low, high]`` with 95% intervals,
        differences are paired by question, and log-probabilities are in nats.
    """
    begin = time.perf_counter()
    progress = bar.add_task("", total=len(METHODS) * len(demo.task.questions) * len(demo.task.positions))
    measured = {}
    for method in METHODS:
        bar.update(progress, description=method.name)
        measured[method.name] = _measure(demo, method, lambda: bar.update(progress, advance=1))
    plain = measured[NoMethod.name][0]
    results = {name: _figures(logprobs, right, plain) for name, (logprobs, right) in measured.items()}
    settings = {
        **demo.settings,
        **conditions(demo.lm),
        "methods": [str(method) for method in METHODS],
        "order": "gold note at the position, the others by their cosine to the question (all-MiniLM-L6-v2)",
        "invariant_methods": "run on one order, as all orders give bit-identical answers",
        "intervals": "95%, bootstrap over questions, paired",
        "seconds": round(time.perf_counter() - begin, 1),
    }
    return {"settings": settings, "results": results}


def _measure(demo: NotesDemo, method: Method, progress: Callable[[], None]) -> tuple[Scores, Scores]:
    """Measure the gold answer's log-probability in nats and the accuracy, by question and position."""
    task, positions = demo.task, list(demo.task.positions)
    logprobs = np.empty((len(task.questions), len(positions)))
    right = np.empty_like(logprobs)
    for case in task.cases():
        assert case.gold_position is not None
        question, column = int(case.question), positions.index(case.gold_position)
        if method.invariant and column > 0:
            logprobs[question, column], right[question, column] = logprobs[question, 0], right[question, 0]
        else:
            logprobs[question, column] = gold_score(demo.lm, task, case, method).logprob
            right[question, column] = task.score(case, task.answers(demo.lm, [case], method, 1)[0].prediction)
        progress()
    names = tuple(f"{index:06}" for index in range(len(logprobs)))
    return Scores(names, tuple(positions), logprobs), Scores(names, tuple(positions), right)


def _figures(logprobs: Scores, right: Scores, plain: Scores) -> dict[str, Any]:
    logprob, accuracy, minus = curve_figures(logprobs, NATS), curve_figures(right), minus_plain(logprobs, plain)
    assert minus is not None  # all methods ran on the same questions
    return {
        "logprob": {name: logprob[name] for name in ("mean", "worst", "best", "gap")},
        **{f"minus_plain_{name}": minus[name] for name in ("mean", "worst", "best")},
        "minus_plain_mean_by_position": minus["by_position"],
        "accuracy": accuracy["mean"],
        "accuracy_by_position": accuracy["by_position"],
    }


def figure(outcome: dict[str, Any]) -> Figure:
    """Draw the picture of the documentation's start page, for these notes."""
    curves = {name: row["minus_plain_mean_by_position"] for name, row in outcome["results"].items()}
    return before_and_after(curves, outcome["settings"]["model"])
