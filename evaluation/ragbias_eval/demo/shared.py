"""Shared code of both demos: questions in the stock prompt, and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from rich.progress import Progress

from ragbias.data.retrieval import stock_prompt
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias_eval import ACCURACY
from ragbias_eval.bench.plan import Unit, run_unit
from ragbias_eval.cost import versions
from ragbias_eval.measures.aggregates import summarise_records
from ragbias_eval.runs import Record
from ragbias_eval.tasks.task import Case, Task, place_gold

COST_ROUNDS = 7  # rounds of cost measurements
CASES_PER_TURN = 10  # cases that run with one method before the next method runs


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
