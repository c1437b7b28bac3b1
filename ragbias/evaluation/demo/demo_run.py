"""The demo of ``tiny``: a FAISS index, a biased model, and every method, measured on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ragbias.evaluation.cost.interleaved import figures, interleaved, now
from ragbias.evaluation.demo.outcome import conditions
from ragbias.evaluation.demo.retrieval import Index, minilm
from ragbias.evaluation.measures.estimates import curve_figures
from ragbias.evaluation.measures.metrics import exact, normalised
from ragbias.evaluation.prompts.stock_prompt import stock_prompt
from ragbias.evaluation.report.charts import overlaid
from ragbias.evaluation.tasks import Case, Task
from ragbias.evaluation.tasks.by_position import Curve, measure
from ragbias.evaluation.tasks.orders import arranged, evenly_spread
from ragbias.generation.request import in_parts
from ragbias.lm import DebiasedLM
from ragbias.methods import (
    AttentionSorting,
    CanonicalOrder,
    ChannelScaling,
    LongContextReorder,
    Method,
    NoMethod,
    Pine,
    Segmented,
)
from ragbias.models.tiny.world import Passage, WorldQuestion, held_out_corpus, held_out_questions
from ragbias.prompt import Prompt

MODEL = "tiny"
ROUNDS = 7  # in which the time to the first token is measured


@dataclass(frozen=True)
class DemoSettings:
    """What the demo runs.

    Attributes:
        questions: number of questions, asked at every position.
        corpus: number of passages in the index.
        positions: how many positions of the gold document are tried.
        documents: numbers of retrieved documents.
    """

    questions: int = 40
    corpus: int = 200
    positions: int = 5
    documents: tuple[int, ...] = (10, 20)
    seed: int = 0


def demo_methods() -> list[Method]:
    """Every method of the demo, ``none`` first."""
    return [
        NoMethod(),
        Segmented(),
        Pine(),
        ChannelScaling.from_profile(MODEL),
        AttentionSorting(),
        LongContextReorder(),
        CanonicalOrder(),
    ]


def as_text(passage: Passage) -> str:
    """A passage as the retriever stores it."""
    return f"{passage.title}\n{passage.text}"


@dataclass(frozen=True)
class DemoQA(Task):
    """Held-out questions over what the retriever finds, in the stock prompt, the gold passage at each position.

    Attributes:
        retrieved: by question, the passages, nearest first, the gold one among them.
        positions: of the gold passage, counted from 0; the others keep their order.
    """

    lm: DebiasedLM
    questions: Sequence[WorldQuestion]
    retrieved: Sequence[Sequence[str]]
    positions: Sequence[int]

    name = "demo"
    max_new_tokens = 8
    chat = False  # the stock prompt is in the chat template already

    def cases(self) -> Iterator[Case]:
        for index, (asked, texts) in enumerate(zip(self.questions, self.retrieved, strict=True)):
            gold, question = as_text(asked.gold), f"{index:06}"
            others = [text for text in texts if text != gold]
            for documents, position, _ in arranged(gold, others, self.positions, 1, question):
                yield Case(
                    id=f"{question}/{position}",
                    question=question,
                    text=stock_prompt(self.lm, documents, asked.question),
                    documents=tuple(documents),
                    answers=(asked.answer,),
                    gold_position=position,
                )

    def score(self, case: Case, prediction: str) -> float:
        return exact(prediction, case.answers)


class Demo:
    """Corpus, index, questions and model of one run."""

    def __init__(self, settings: DemoSettings) -> None:
        self.settings = settings
        self.lm = DebiasedLM.from_pretrained(MODEL, "none")
        corpus = held_out_corpus(settings.corpus, settings.seed)
        self.questions = held_out_questions(corpus, settings.questions, settings.seed)
        self.index = Index([as_text(passage) for passage in corpus], minilm())

    def retrieve(self, question: WorldQuestion, k: int) -> tuple[list[str], bool]:
        """The ``k`` nearest passages, and whether the gold one is among them; if not, it replaces the last one."""
        found, gold = self.index.search(question.question, k), as_text(question.gold)
        return (found, True) if gold in found else ([*found[:-1], gold], False)

    def task(self, documents: int) -> tuple[DemoQA, float]:
        """The questions with so many passages each, and how often the retriever found the gold one by itself."""
        retrieved = [self.retrieve(question, documents) for question in self.questions]
        positions = evenly_spread(documents, self.settings.positions)
        task = DemoQA(self.lm, self.questions, [texts for texts, _ in retrieved], positions)
        return task, sum(hit for _, hit in retrieved) / len(retrieved)


def run(demo: Demo, progress: Callable[[str, int], None]) -> dict[str, Any]:
    """Measure every method; ``progress`` is called with the method's name and the number of answers given.

    Returns:
        ``settings``, ``results`` as plain data, and ``curves``: the same as ``Curve`` objects.
    """
    settings = demo.settings
    results: dict[str, dict[str, Any]] = {}
    curves: dict[int, dict[str, Curve]] = {}
    hits: dict[str, float] = {}
    for documents in settings.documents:
        task, hits[str(documents)] = demo.task(documents)
        methods = demo_methods()
        ratios = prefill_ratios(task, methods)
        curves[documents] = {}
        results[str(documents)] = {}
        for method in methods:
            curve = measure(demo.lm, method, task, partial(progress, method.name))
            curves[documents][method.name] = curve
            results[str(documents)][method.name] = {**curve.as_dict(), "prefill_ratio": ratios[method.name]}
    return {"settings": described(demo, hits), "results": results, "curves": curves}


def telling_question(demo: Demo) -> WorldQuestion:
    """The first question whose plain answer changes when the most documents are reversed; if none does, the first."""
    for question in demo.questions:
        texts, _ = demo.retrieve(question, max(demo.settings.documents))
        orders = [texts, texts[::-1]]
        prompts = [stock_prompt(demo.lm, order, question.question) for order in orders]
        forward, backward = demo.lm.batch(prompts, documents=orders, method="none", max_new_tokens=8)
        if normalised(forward.text) != normalised(backward.text):
            return question
    return demo.questions[0]


def prefill_ratios(task: DemoQA, methods: Sequence[Method]) -> dict[str, float]:
    """Median time to the first token in units of ``none``, all methods interleaved on the same prompts."""
    lm, first = task.lm, [case for case in task.cases() if case.gold_position == task.positions[0]]
    prompts = [in_parts(case.text, case.documents, None)[0] for case in first[:ROUNDS]]

    def seconds(prompt: Prompt, method: Method) -> tuple[float]:
        begin = now(lm.model.device)
        lm.generate(prompt, method=method, max_new_tokens=1)
        return (now(lm.model.device) - begin,)

    by_name = {method.name: method for method in methods}
    taken = interleaved(by_name, [prompts[0], *prompts], seconds)
    return {name: figures(taken, name, 0, first=1)[1][0] for name in by_name}  # the first round warms up


def described(demo: Demo, hits: dict[str, float]) -> dict[str, Any]:
    """Everything needed to repeat the run."""
    settings = demo.settings
    return {
        "model": MODEL,
        **conditions(demo.lm),
        "questions": settings.questions,
        "corpus_passages": settings.corpus,
        "seed": settings.seed,
        "methods": [str(method) for method in demo_methods()],
        "retriever": "FAISS IndexFlatIP over all-MiniLM-L6-v2, cosine",
        "retriever_found_gold": hits,
        "order": "gold passage at the position, the others by rank",
        "flip_rate": "over the orders that the positions make",
    }


def figure(outcome: dict[str, Any]) -> Figure:
    """Accuracy by position, the methods beside each other, a panel for each number of documents."""
    settings = outcome["settings"]
    title = f"documents, {settings['questions']} questions, {MODEL}"
    return overlaid({f"{documents} {title}": _lines(curves) for documents, curves in outcome["curves"].items()})


def _lines(curves: Mapping[str, Curve]) -> dict[str, dict[str, Any]]:
    """Accuracy by position with its interval, for the figure."""
    return {name: curve_figures(curve.scores)["by_position"] for name, curve in curves.items()}
