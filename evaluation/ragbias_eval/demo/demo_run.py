"""The demo of the embedded model ``tiny``: held-out questions, a FAISS index and several methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from rich.progress import Progress

from ragbias.data.retrieval import Index
from ragbias.generation.preparing import find_origin
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, parse_methods
from ragbias.models.tiny.world import held_out_corpus, held_out_questions
from ragbias_eval.cost import measure_costs
from ragbias_eval.demo import shared
from ragbias_eval.demo.shared import GoldQuestion, StockQA, describe_conditions, run_methods
from ragbias_eval.metrics import exact_match
from ragbias_eval.report.charts import draw_overlaid
from ragbias_eval.tasks.task import spread_positions

MODEL = "tiny"
METHODS = "none,segmented,pine,channel-scaling,attention-sorting,long-context-reorder,canonical-order"
FIGURE_NAMES = ("accuracy_by_position", "mean", "worst", "gap", "flip_rate")


class Demo:
    """Index, questions and model of one run.

    Args:
        questions: number of questions. Each runs with the gold document at every position.
        corpus: number of passages in the index.
        positions: number of positions of the gold document.
        documents: numbers of documents to retrieve. All questions run with each number.
    """

    def __init__(
        self,
        questions: int = 40,
        seed: int = 0,
        corpus: int = 200,
        positions: int = 5,
        documents: tuple[int, ...] = (10, 20),
    ) -> None:
        self.seed, self.positions, self.documents = seed, positions, documents
        self.lm = DebiasedLM.from_pretrained(MODEL, "none")
        passages = held_out_corpus(corpus, seed)
        self.questions = held_out_questions(passages, questions, seed)
        self.index = Index([passage.document for passage in passages])

    def task(self, documents: int) -> tuple[StockQA, float]:
        """Return a task whose prompts have ``documents`` passages, and the index's recall of gold passages.

        If the index does not find the gold passage, the gold passage replaces the last retrieved passage.
        """
        golds, hits = [], 0
        for question in self.questions:
            gold = question.gold.document
            others = self.index.search(question.question, documents)
            if gold in others:
                others.remove(gold)
                hits += 1
            golds.append(GoldQuestion(question.question, gold, others[: documents - 1], question.answer))
        task = StockQA(self.lm, golds, spread_positions(documents, self.positions), exact_match)
        return task, hits / len(golds)

    def run(self, bar: Progress) -> dict[str, Any]:
        """Measure every method.

        Returns:
            JSON data: ``settings``, and ``results`` by number of documents and method. Positions are counted from 0.
            Results are ``[estimate, low, high]`` with 95% intervals.
        """
        methods, results = parse_methods(METHODS, MODEL), {}
        hits: dict[str, float] = {}
        for documents in self.documents:
            task, hits[str(documents)] = self.task(documents)
            ratios = _measure_prefill_ratios(task, methods)
            results[str(documents)] = {
                name: {**{figure: row[figure] for figure in FIGURE_NAMES}, "prefill_ratio": ratios[name]}
                for name, row in run_methods(task, methods, bar).items()
            }
        settings = {
            "model": MODEL,
            **describe_conditions(self.lm),
            "questions": len(self.questions),
            "corpus_passages": len(self.index.texts),
            "seed": self.seed,
            "methods": [str(method) for method in methods.values()],
            "retriever_found_gold": hits,
        }
        return {"settings": settings, "results": results}


def _measure_prefill_ratios(task: StockQA, methods: Mapping[str, Method]) -> dict[str, float]:
    cases = [case for case in task.cases() if case.gold_position == task.positions[0]]
    prompts = [find_origin(case.text, case.documents, None).parts for case in cases[: shared.COST_ROUNDS]]
    costs = measure_costs(task.lm, prompts, methods, len(prompts))
    return {name: cost["prefill_ratio"][0] for name, cost in costs.items()}


def draw_figure(outcome: dict[str, Any]) -> Figure:
    """Draw accuracy by position for all methods, in a panel for each number of documents."""
    title = f"documents, {outcome['settings']['questions']} questions, {MODEL}"
    panels = {
        f"{documents} {title}": {name: row["accuracy_by_position"] for name, row in rows.items()}
        for documents, rows in outcome["results"].items()
    }
    return draw_overlaid(panels)
