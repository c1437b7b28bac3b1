"""The demos: questions for ``tiny`` about its made-up world, and questions for real models about invented notes.

Both search their texts in a FAISS index, and put the gold document at several positions of the stock prompt.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.progress import Progress
from rich.table import Table

from ragbias.data.intervals import format_figure
from ragbias.data.questions import best_subspan_em
from ragbias.data.retrieval import Index, stock_prompt
from ragbias.errors import RunError
from ragbias.generation.preparing import split_prompt
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, NoMethod, ParallelContextWindows, Pine, RoToR, default_method, get, parse_methods
from ragbias.models.tiny.world import held_out_corpus, held_out_questions
from ragbias_eval import ACCURACY, LOGPROB
from ragbias_eval.bench import Unit, run_unit
from ragbias_eval.cost import measure_costs, versions
from ragbias_eval.measures.aggregates import summarise_records
from ragbias_eval.metrics import exact_match
from ragbias_eval.report.figures import RELATIVE_LOGPROB, draw_overlaid, draw_small_multiples, make_styles
from ragbias_eval.report.tables import make_table
from ragbias_eval.runs import Record
from ragbias_eval.tasks.task import Case, Task, place_gold, spread_positions

TINY = "tiny"
TINY_METHODS = "none,segmented,pine,channel-scaling,attention-sorting,long-context-reorder,canonical-order"
TINY_FIGURES = ("accuracy_by_position", "mean", "worst", "gap", "flip_rate")
NOTES_METHODS = (NoMethod(), Pine(), RoToR(), ParallelContextWindows())
COST_ROUNDS = 7  # rounds of cost measurements
CASES_PER_TURN = 10  # cases that run with one method before the next method runs


@dataclass(frozen=True)
class Note:
    """A text, a question about it, and an answer sentence. The sentence consists of ``begin`` and ``answer``.

    The prompt includes ``begin``, so that the model continues with ``answer``. Without it, models that write sentences
    usually start with other words.
    """

    title: str
    text: str
    question: str
    answer: str
    begin: str = ""

    @property
    def document(self) -> str:
        return f"{self.title}\n{self.text}"


@dataclass(frozen=True)
class StockQA(Task):
    """Questions about notes in the stock prompt, with the gold note at each of the ``positions``, counted from 0.

    The other ``documents - 1`` texts are those of the ``index`` that are most similar to the question, best first.
    """

    lm: DebiasedLM
    index: Index
    notes: Sequence[Note]
    documents: int
    positions: Sequence[int]
    metric: Callable[[str, Sequence[str]], float]

    name = "demo"
    max_new_tokens = 8
    chat = False  # the stock prompt already includes the chat template

    def cases(self) -> Iterator[Case]:
        for number, note in enumerate(self.notes):
            name, gold = f"{number:06}", note.document
            others = [text for text in self.index.search(note.question, self.documents + 1) if text != gold]
            for documents, position, _ in place_gold(gold, others[: self.documents - 1], self.positions, 1, name):
                prompt = stock_prompt(self.lm, documents, note.question)
                yield Case(
                    id=f"{name}/{position}",
                    question=name,
                    text=prompt + self.continuation(prompt, note.begin) if note.begin else prompt,
                    documents=tuple(documents),
                    answers=(note.answer,),
                    gold_position=position,
                )

    def score(self, case: Case, prediction: str) -> float:
        return self.metric(prediction, case.answers)


class Demo:
    """Model, methods and questions of one run, and its settings as JSON data."""

    lm: DebiasedLM
    methods: Mapping[str, Method]
    task: StockQA
    settings: Mapping[str, Any]

    def run(self, bar: Progress) -> dict[str, Any]:
        """Measure all methods.

        Returns:
            JSON data: ``settings``, and ``results`` by method. Results are ``[estimate, low, high]`` with 95%
            intervals. Positions are counted from 0. Log-probabilities are in nats.
        """
        begin = time.perf_counter()
        results = self.measure(bar)
        settings = {
            **self.settings,
            "dtype": str(self.lm.model.dtype),
            "versions": versions(),
            "threads": torch.get_num_threads(),
            "methods": [str(method) for method in self.methods.values()],
            "seconds": round(time.perf_counter() - begin, 1),
        }
        return {"settings": settings, "results": results}

    def measure(self, bar: Progress) -> dict[str, Any]:
        raise NotImplementedError

    def answer(
        self, bar: Progress, measures: tuple[str, ...], batch_size: int, invariant_once: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Run all methods on all cases. Return the results by method, see ``summarise_records``."""
        cases = list(self.task.cases())
        progress = bar.add_task("answering", total=len(cases) * len(self.methods))
        records: list[Record] = []
        for begin in range(0, len(cases), CASES_PER_TURN):
            batch = tuple(cases[begin : begin + CASES_PER_TURN])
            unit = Unit(
                self.lm.name, self.task, batch, self.methods, batch_size, measures, invariant_once=invariant_once
            )
            for answered in run_unit(unit, self.lm):
                records += answered
                bar.update(progress, advance=len(answered))
        (result,) = summarise_records(records)["results"]
        return dict(result["methods"])


class TinyDemo(Demo):
    """The demo with ``tiny``.

    Args:
        questions: number of questions. Each runs with the gold document at every position.
        corpus: number of passages in the index.
        positions: number of positions of the gold document.
        documents: number of passages in a prompt.
    """

    def __init__(
        self, questions: int = 40, seed: int = 0, corpus: int = 200, positions: int = 5, documents: int = 20
    ) -> None:
        self.settings = {"model": TINY, "questions": questions, "documents": documents, "corpus": corpus, "seed": seed}
        self.lm = DebiasedLM.from_pretrained(TINY, "none")
        self.methods = parse_methods(TINY_METHODS, TINY)
        passages = held_out_corpus(corpus, seed)
        index = Index([passage.document for passage in passages])
        drawn = held_out_questions(passages, questions, seed)
        notes = [Note(each.gold.title, each.gold.text, each.question, each.answer) for each in drawn]
        self.task = StockQA(self.lm, index, notes, documents, spread_positions(documents, positions), exact_match)

    def measure(self, bar: Progress) -> dict[str, Any]:
        first_position = (case for case in self.task.cases() if case.gold_position == self.task.positions[0])
        cases = list(islice(first_position, COST_ROUNDS))
        prompts = [split_prompt(case.text, case.documents).parts for case in cases]
        costs = measure_costs(self.lm, prompts, self.methods, len(prompts))
        results = {}
        for name, row in self.answer(bar, (ACCURACY,), CASES_PER_TURN).items():
            results[name] = {figure: row[figure] for figure in TINY_FIGURES}
            results[name]["prefill_ratio"] = costs[name]["prefill_ratio"][0]
        return results

    @staticmethod
    def draw(outcome: dict[str, Any]) -> Figure:
        """Draw the accuracy by position, in a panel for each method."""
        curves = {name: row["accuracy_by_position"] for name, row in outcome["results"].items()}
        return draw_small_multiples(curves, make_styles(curves))

    @staticmethod
    def report(outcome: dict[str, Any]) -> Iterator[Table | str]:
        """Yield a table of all figures, then an explanation."""
        settings, results = outcome["settings"], outcome["results"]
        positions = list(results["none"]["accuracy_by_position"])
        title = f"{settings['documents']} documents: accuracy with the answer in document ..."
        headings = [str(int(position) + 1) for position in positions]
        table = make_table(title, "method", *headings, "mean", "worst", "gap", "flips", "cost")
        margin = 0.0
        for name, row in results.items():
            points = [row["accuracy_by_position"][position] for position in positions]
            margin = max(margin, *(max(high - estimate, estimate - low) for estimate, low, high in points))
            figures = [f"{point[0]:.2f}" for point in (*points, row["mean"], row["worst"], row["gap"])]
            table.add_row(name, *figures, f"{row['flip_rate'][0]:.0%}", f"x{row['prefill_ratio']:.2f}")
        yield table
        yield (
            f"With {settings['questions']} questions, an accuracy may be off by up to {margin:.2f} (the widest 95% "
            "interval).\n"
            "flips: questions whose answer depends on the order of the documents.\n"
            "cost: time to the first token; on larger models, the ratios are closer to 1 (docs/results/speed.md).\n"
            "The model is biased because its training data has answers near the ends of prompts (docs/results/tiny.md)."
        )


def read_notes() -> list[Note]:
    """Read all notes (CC0). They are invented, so models cannot know the answers."""
    lines = (resources.files(__package__) / "notes.jsonl").read_text(encoding="utf-8").splitlines()
    return [Note(**json.loads(line)) for line in lines]


class NotesDemo(Demo):
    """The demo with a real model.

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
        default = default_method(model)
        self.settings = {"model": model, **sizes, "seed": seed, "default": default}
        self.methods = {method.name: method for method in NOTES_METHODS} | {default: get(default)}
        self.lm = DebiasedLM.from_pretrained(model, "none")
        index = Index([note.document for note in all_notes])
        notes = random.Random(seed).sample(all_notes, questions)
        self.task = StockQA(self.lm, index, notes, documents, spread_positions(documents, positions), best_subspan_em)

    def measure(self, bar: Progress) -> dict[str, Any]:
        # invariant methods run in only one order, because all orders give bit-identical answers
        rows = self.answer(bar, (ACCURACY, LOGPROB), batch_size=1, invariant_once=True)
        return {name: _select_figures(row) for name, row in rows.items()}

    @staticmethod
    def draw(outcome: dict[str, Any]) -> Figure:
        """Draw log-probabilities of the plain model and the default method by gold position.

        The plain model's mean is subtracted from all values.
        """
        names = {"none": f"plain {outcome['settings']['model']}", outcome["settings"]["default"]: "order-invariant"}
        curves = {
            f"{label} ({name})": outcome["results"][label]["minus_plain_mean_by_position"]
            for label, name in names.items()
        }
        return draw_overlaid(curves, make_styles(curves), RELATIVE_LOGPROB)

    @staticmethod
    def report(outcome: dict[str, Any]) -> Iterator[Table | str]:
        """Yield tables of at most 80 columns with results by position and differences, then an explanation."""
        settings, results = outcome["settings"], outcome["results"]
        positions = list(results["none"]["minus_plain_mean_by_position"])
        count, notes = settings["questions"], settings["documents"]
        title = f"Gold answer in note ..., minus the plain mean ({count} questions, {notes} notes)"
        by_position = make_table(title, "method", *(str(int(position) + 1) for position in positions))
        against = make_table("Mean minus the plain model's ...", "method", "mean", "worst position", "best position")
        note = ""  # only the default method may have parameters
        for name, row in results.items():
            minus, accuracy = row["minus_plain_mean_by_position"], row["accuracy_by_position"]
            label, _, parameters = name.partition("(")
            if parameters:
                label, note = f"{label}*", f"* {name}\n"
            by_position.add_row(label, *(f"{minus[key][0]:+.2f} ({accuracy[key][0]:.2f})" for key in positions))
            if name != "none":
                against.add_row(label, *(format_figure(row[f"minus_plain_{end}"]) for end in ("mean", "worst", "best")))
        yield from (by_position, against)
        yield (
            f"{note}Log-probability of the gold answer in nats (-0.69: half as probable), accuracy in brackets; 95% "
            "intervals.\n"
            f"Plain model, best position minus worst: {format_figure(results['none']['logprob']['gap'])}. "
            f"This bias was not trained on purpose.\nThe measurement took {settings['seconds']:.0f} s."
        )


def _select_figures(row: dict[str, Any]) -> dict[str, Any]:
    logprob, minus = row["logprob"], row["logprob"]["minus_plain"]
    return {
        "logprob": {name: logprob[name] for name in ("mean", "worst", "best", "gap")},
        **{f"minus_plain_{name}": minus[name] for name in ("mean", "worst", "best")},
        "minus_plain_mean_by_position": minus["by_position"],
        "accuracy": row["mean"],
        "accuracy_by_position": row["accuracy_by_position"],
    }
