"""The demo: a FAISS index, a biased model, and every method, measured on held-out questions."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from ragbias.errors import MethodError
from ragbias.evaluation.cost.interleaved import figures, interleaved, now
from ragbias.evaluation.data.model_loading import load_model
from ragbias.evaluation.data.stock_prompt import stock_prompt
from ragbias.evaluation.demo.retrieval import Index, minilm
from ragbias.evaluation.measures.by_position import Curve, Example, MakeText, measure, split
from ragbias.evaluation.measures.metrics import normalised
from ragbias.evaluation.report.plotting import literal
from ragbias.evaluation.tasks.orders import evenly_spread
from ragbias.methods import AttentionSorting, CanonicalOrder, ChannelScaling, LongContextReorder, Method, NoMethod, Pine
from ragbias.models.tiny.world import Passage, WorldQuestion, held_out_corpus, held_out_questions
from ragbias.prompt import Prompt


@dataclass(frozen=True)
class DemoSettings:
    """What the demo runs.

    Attributes:
        questions: number of questions, asked at every position.
        corpus: number of passages in the index.
        positions: how many positions of the gold document are tried.
        documents: numbers of retrieved documents.
    """

    model: str = "tiny"
    questions: int = 40
    corpus: int = 200
    positions: int = 5
    documents: tuple[int, ...] = (10, 20)
    seed: int = 0


def demo_methods(model: str) -> list[Method]:
    """Every method of the demo, ``none`` first; channel scaling only where it has a profile for the model."""
    scaling: list[Method] = []
    with suppress(MethodError):
        scaling.append(ChannelScaling.from_profile(model))
    return [NoMethod(), Pine(), *scaling, AttentionSorting(), LongContextReorder(), CanonicalOrder()]


def as_text(passage: Passage) -> str:
    """A passage as the retriever stores it."""
    return f"{passage.title}\n{passage.text}"


class Demo:
    """Corpus, index, questions and model of one run."""

    def __init__(self, settings: DemoSettings) -> None:
        self.settings = settings
        self.lm = load_model(settings.model)
        corpus = held_out_corpus(settings.corpus, settings.seed)
        self.questions = held_out_questions(corpus, settings.questions, settings.seed)
        self.index = Index([as_text(passage) for passage in corpus], minilm())

    def retrieve(self, question: WorldQuestion, k: int) -> tuple[list[str], bool]:
        """The ``k`` nearest passages, and whether the gold one is among them; if not, it takes the last place."""
        found, gold = self.index.search(question.question, k), as_text(question.gold)
        return (found, True) if gold in found else ([*found[:-1], gold], False)

    def examples(self, documents: int) -> tuple[list[Example], int]:
        """One example per question, and how often the retriever found the gold passage by itself."""
        examples, hits = [], 0
        for question in self.questions:
            texts, hit = self.retrieve(question, documents)
            gold = as_text(question.gold)
            rest = tuple(text for text in texts if text != gold)
            examples.append(Example(question.question, question.answer, gold, rest))
            hits += hit
        return examples, hits

    @property
    def make_text(self) -> MakeText:
        """The stock prompt for this model."""
        return partial(stock_prompt, self.lm)


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
        examples, found = demo.examples(documents)
        hits[str(documents)] = found / len(examples)
        positions = evenly_spread(documents, settings.positions)
        methods = demo_methods(settings.model)
        ratios = prefill_ratios(demo, examples, methods)
        curves[documents] = {}
        results[str(documents)] = {}
        for method in methods:
            report = partial(progress, method.name)
            curve = measure(demo.lm, method, examples, positions, demo.make_text, report)
            curves[documents][method.name] = curve
            results[str(documents)][method.name] = {**curve.as_dict(), "prefill_ratio": ratios[method.name]}
    return {"settings": described(demo, hits), "results": results, "curves": curves}


def telling_question(demo: Demo) -> WorldQuestion:
    """The first question whose plain answer changes when the most documents are reversed; if none does, the first."""
    for question in demo.questions:
        texts, _ = demo.retrieve(question, max(demo.settings.documents))
        prompts = [split(demo.make_text(order, question.question), order) for order in (texts, texts[::-1])]
        forward, backward = demo.lm.batch(prompts, method="none", max_new_tokens=8)
        if normalised(forward.text) != normalised(backward.text):
            return question
    return demo.questions[0]


def prefill_ratios(
    demo: Demo, examples: Sequence[Example], methods: Sequence[Method], rounds: int = 7
) -> dict[str, float]:
    """Median time to the first token in units of ``none``, all methods interleaved on the same prompts."""
    prompts = [split(demo.make_text(e.arranged(0), e.question), e.arranged(0)) for e in examples[:rounds]]

    def seconds(prompt: Prompt, method: Method) -> tuple[float]:
        begin = now(demo.lm.model.device)
        demo.lm.generate(prompt, method=method, max_new_tokens=1)
        return (now(demo.lm.model.device) - begin,)

    by_name = {method.name: method for method in methods}
    taken = interleaved(by_name, [prompts[0], *prompts], seconds)
    return {name: figures(taken, name, 0, first=1)[1][0] for name in by_name}  # the first round warms up


def described(demo: Demo, hits: dict[str, float]) -> dict[str, Any]:
    """Everything needed to repeat the run."""
    settings = demo.settings
    return {
        "model": settings.model,
        "dtype": str(demo.lm.model.dtype),
        "questions": settings.questions,
        "corpus_passages": settings.corpus,
        "seed": settings.seed,
        "methods": [str(method) for method in demo_methods(settings.model)],
        "retriever": "FAISS IndexFlatIP over all-MiniLM-L6-v2, cosine",
        "retriever_found_gold": hits,
        "order": "gold passage at the position, the others by rank",
        "flip_rate": "over the orders that the positions make",
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "threads": torch.get_num_threads(),
    }


def save(outcome: dict[str, Any], folder: Path) -> None:
    """Write ``results.json`` and ``bias.png``."""
    from ragbias.evaluation.report.figures import overlaid

    folder.mkdir(parents=True, exist_ok=True)
    plain = {"settings": outcome["settings"], "results": outcome["results"]}
    (folder / "results.json").write_text(json.dumps(plain, indent=2) + "\n")
    settings = outcome["settings"]
    title = f"Accuracy by the answer's position: model {settings['model']}, {settings['questions']} held-out questions"
    panels = {f"{documents} documents": _lines(curves) for documents, curves in outcome["curves"].items()}
    figure = overlaid(panels)
    figure.suptitle(literal(title))
    figure.savefig(folder / "bias.png", dpi=120)


def _lines(curves: Mapping[str, Curve]) -> dict[str, dict[str, list[float | None]]]:
    """The curves as the figures take them: positions from 0, no intervals."""
    return {
        f"{name} (flips {curve.flip_rate:.0%})": {
            str(position - 1): [accuracy, None, None] for position, accuracy in curve.accuracy_by_position.items()
        }
        for name, curve in curves.items()
    }
