"""The demo of a real model: questions about thirty short, invented notes (``notes.jsonl``, CC0)."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from importlib import resources
from typing import Any

from matplotlib.figure import Figure
from rich.progress import Progress

from ragbias.data.questions import best_subspan_em
from ragbias.data.retrieval import Index
from ragbias.errors import RunError
from ragbias.lm import DebiasedLM
from ragbias.methods import NoMethod, ParallelContextWindows, Pine, RoToR, default_method, get
from ragbias_eval import ACCURACY, LOGPROB
from ragbias_eval.demo.shared import GoldQuestion, StockQA, describe_conditions, run_methods
from ragbias_eval.report.charts import RELATIVE_LOGPROB, draw_overlaid
from ragbias_eval.tasks.task import spread_positions

METHODS = (NoMethod(), Pine(), RoToR(), ParallelContextWindows())


@dataclass(frozen=True)
class Note:
    """A text, a question about it, and an answer sentence. The sentence consists of ``begin`` and ``answer``.

    The prompt includes ``begin``, so that the model continues with ``answer``. Otherwise, models that write sentences
    usually begin with other words.
    """

    title: str
    text: str
    question: str
    begin: str
    answer: str

    @property
    def document(self) -> str:
        return f"{self.title}\n{self.text}"


def read_notes() -> list[Note]:
    """Read all notes. They are invented, so models cannot know the answers."""
    lines = (resources.files(__package__) / "notes.jsonl").read_text(encoding="utf-8").splitlines()
    return [Note(**json.loads(line)) for line in lines]


class NotesDemo:
    """Model and questions of one run.

    Args:
        questions: number of questions, drawn with ``seed``.
        documents: number of notes in a prompt.
        positions: number of positions of the gold note.
    """

    def __init__(self, model: str, questions: int = 20, seed: int = 0, documents: int = 10, positions: int = 5) -> None:
        all_notes = read_notes()
        if questions > len(all_notes):
            raise RunError(f"questions={questions}, but the demo of {model} has {len(all_notes)} questions; use fewer")
        sizes = {"questions": questions, "documents": documents, "positions": positions}
        self.settings = {"model": model, **sizes, "seed": seed}
        self.default = default_method(model)
        self.methods = {method.name: method for method in METHODS} | {self.default: get(self.default)}
        self.lm = DebiasedLM.from_pretrained(model, "none")
        index = Index([note.document for note in all_notes])
        golds = []
        for note in random.Random(seed).sample(all_notes, questions):
            others = [text for text in index.search(note.question, documents + 1) if text != note.document]
            golds.append(GoldQuestion(note.question, note.document, others[: documents - 1], note.answer, note.begin))
        self.task = StockQA(self.lm, golds, spread_positions(documents, positions), best_subspan_em)

    def run(self, bar: Progress) -> dict[str, Any]:
        """Measure all methods. Invariant methods run in only one order, because all orders give bit-identical answers.

        Returns:
            JSON data: ``settings``, and ``results`` by method. Results are ``[estimate, low, high]`` with 95%
            intervals. Differences are paired by question. Log-probabilities are in nats.
        """
        begin = time.perf_counter()
        rows = run_methods(self.task, self.methods, bar, (ACCURACY, LOGPROB), batch_size=1, invariant_once=True)
        results = {name: _select_figures(row) for name, row in rows.items()}
        settings = {
            **self.settings,
            **describe_conditions(self.lm),
            "methods": [str(method) for method in self.methods.values()],
            "default": self.default,
            "seconds": round(time.perf_counter() - begin, 1),
        }
        return {"settings": settings, "results": results}


def _select_figures(row: dict[str, Any]) -> dict[str, Any]:
    logprob, minus = row["logprob"], row["logprob"]["minus_plain"]
    return {
        "logprob": {name: logprob[name] for name in ("mean", "worst", "best", "gap")},
        **{f"minus_plain_{name}": minus[name] for name in ("mean", "worst", "best")},
        "minus_plain_mean_by_position": minus["by_position"],
        "accuracy": row["mean"],
        "accuracy_by_position": row["accuracy_by_position"],
    }


def draw_figure(outcome: dict[str, Any]) -> Figure:
    """Draw log-probabilities of the plain model and the default method by gold position.

    The plain model's mean is subtracted from all values.
    """
    names = {"none": f"plain {outcome['settings']['model']}", outcome["settings"]["default"]: "order-invariant"}
    curves = {
        f"{label} ({name})": outcome["results"][label]["minus_plain_mean_by_position"] for label, name in names.items()
    }
    return draw_overlaid({"": curves}, scale=RELATIVE_LOGPROB)
