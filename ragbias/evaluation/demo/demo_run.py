"""The demo of the embedded model ``tiny``: held-out questions, a FAISS index and several methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from matplotlib.figure import Figure
from rich.progress import Progress

from ragbias.errors import MissingExtraError
from ragbias.evaluation.cost import measure_costs
from ragbias.evaluation.demo import shared
from ragbias.evaluation.demo.shared import GoldQuestion, Index, StockQA, describe_conditions, run_methods
from ragbias.evaluation.measures.metrics import exact_match, normalise
from ragbias.evaluation.prompts import stock_prompt
from ragbias.evaluation.report.charts import draw_overlaid
from ragbias.evaluation.tasks.task import spread_positions
from ragbias.generation.preparing import split_prompt
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, parse_methods
from ragbias.models.tiny.world import WorldQuestion, held_out_corpus, held_out_questions

MODEL = "tiny"
METHODS = "none,segmented,pine,channel-scaling,attention-sorting,long-context-reorder,canonical-order"
FIGURE_NAMES = ("accuracy_by_position", "mean", "worst", "gap", "flip_rate")


class Demo:
    """Corpus, index, questions and model of one run.

    Args:
        questions: number of questions. Each runs with the gold document at every position.
        corpus: number of passages in the index.
        positions: number of positions of the gold document.
        documents: numbers of retrieved documents.
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

    def retrieve(self, question: WorldQuestion, k: int) -> tuple[list[str], bool]:
        """Return ``k`` passages, and whether the gold passage was found. If not, the gold passage replaces the last."""
        nearest, gold = self.index.search(question.question, k), question.gold.document
        return (nearest, True) if gold in nearest else ([*nearest[:-1], gold], False)

    def task(self, documents: int) -> tuple[StockQA, float]:
        """Return a task whose prompts have ``documents`` passages, and the index's recall of gold passages."""
        golds, hits = [], 0
        for question in self.questions:
            texts, hit = self.retrieve(question, documents)
            gold = question.gold.document
            golds.append(
                GoldQuestion(question.question, gold, [text for text in texts if text != gold], question.answer)
            )
            hits += hit
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
            "retriever": "FAISS IndexFlatIP over all-MiniLM-L6-v2, cosine",
            "retriever_found_gold": hits,
            "order": "gold passage at the position, the others by rank",
            "flip_rate": "over the orders that the positions make",
        }
        return {"settings": settings, "results": results}


def _measure_prefill_ratios(task: StockQA, methods: Mapping[str, Method]) -> dict[str, float]:
    """Measure each method's median time to the first token, relative to ``none``."""
    cases = [case for case in task.cases() if case.gold_position == task.positions[0]]
    prompts = [split_prompt(case.text, case.documents, None).parts for case in cases[: shared.COST_ROUNDS]]
    costs = measure_costs(task.lm, prompts, methods, len(prompts))
    return {name: cost["prefill_ratio"][0] for name, cost in costs.items()}


def find_order_sensitive_question(demo: Demo) -> WorldQuestion:
    """Return a question whose plain answer changes if the documents are reversed, else the first question."""
    for question in demo.questions:
        texts, _ = demo.retrieve(question, max(demo.documents))
        orders = [texts, texts[::-1]]
        prompts = [stock_prompt(demo.lm, order, question.question) for order in orders]
        forward, backward = demo.lm.batch(prompts, documents=orders, method="none", max_new_tokens=8)
        if normalise(forward.text) != normalise(backward.text):
            return question
    return demo.questions[0]


def ask_in_both_orders(demo: Demo, question: WorldQuestion) -> Iterator[tuple[str, str, str, str]]:
    """Yield ``(framework, method, answer as retrieved, answer reversed)`` for ``none`` and ``pine``.

    Each integration has an entry point in the group ``ragbias.demo``. The entry point is a function ``(passages,
    question, lm, method, documents) -> (answer as retrieved, answer reversed)`` that runs a chain of the framework.
    """
    integrations = sorted(entry_points(group="ragbias.demo"), key=lambda entry: entry.name)
    if not integrations:
        raise MissingExtraError(
            "no integration is installed; install both with: pip install langchain-ragbias llama-index-llms-ragbias "
            "(from a clone: pip install -e integrations/langchain -e integrations/llama-index)"
        )
    for integration in integrations:
        answer = integration.load()
        for method in ("none", "pine"):
            documents = max(demo.documents)
            forward, backward = answer(demo.index.texts, question.question, demo.lm, method, documents)
            yield integration.name, method, forward, backward


def draw_figure(outcome: dict[str, Any]) -> Figure:
    """Draw accuracy by position for all methods, in a panel for each number of documents."""
    title = f"documents, {outcome['settings']['questions']} questions, {MODEL}"
    panels = {
        f"{documents} {title}": {name: row["accuracy_by_position"] for name, row in rows.items()}
        for documents, rows in outcome["results"].items()
    }
    return draw_overlaid(panels)
