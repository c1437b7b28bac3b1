"""Run the units of a bench. Only one model is loaded at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from ragbias.errors import RagBiasError
from ragbias.evaluation import ACCURACY, LOGPROB
from ragbias.evaluation.bench.plan import Unit
from ragbias.evaluation.runs.records import Record
from ragbias.evaluation.tasks.orders import ranking
from ragbias.evaluation.tasks.task import Answer, GoldScore, gold_score
from ragbias.lm import DebiasedLM
from ragbias.methods import NoMethod


class Models:
    """Load models by name, on a GPU if available. Only the last model remains loaded."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._lm: DebiasedLM | None = None

    def load(self, name: str) -> DebiasedLM:
        if self._lm is None or self._lm.name != name:
            self._lm = None  # two models may not fit into memory
            self._lm = DebiasedLM.from_pretrained(name, "none", dtype=self._dtype, device="auto")
        return self._lm


class CaseResult(NamedTuple):
    """The results of one case with one method: what was measured, and the seconds of the answer."""

    source: int  # index of the case in its unit
    written: Answer | None
    gold: GoldScore | None
    seconds: float


def records_of(unit: Unit, lm: DebiasedLM) -> Iterator[list[Record]]:
    """Yield the records of the unit, one list per method."""
    plain: list[GoldScore] = []  # computed once, for comparison with all methods
    for label, method in unit.methods.items():
        sources = unit.sources(method)
        distinct = list(dict.fromkeys(sources))
        cases = [unit.cases[index] for index in distinct]
        answers: list[Answer] = []
        golds: list[GoldScore] = []
        begin = time.perf_counter()
        try:
            if ACCURACY in unit.measures:
                answers = unit.task.answers(lm, cases, method, unit.batch_size)
            seconds = (time.perf_counter() - begin) / len(cases)
            if LOGPROB in unit.measures:
                plain = plain or [gold_score(lm, unit.task, case, NoMethod()) for case in unit.cases]
                golds = plain if method == NoMethod() else [gold_score(lm, unit.task, case, method) for case in cases]
        except RagBiasError as error:
            where = f"task {unit.task.name}, method {label}, batch of case {unit.cases[0].id!r}"
            raise type(error)(f"{where}: {error}") from error
        results = {
            source: CaseResult(source, written, gold, seconds)
            for source, (written, gold) in zip(distinct, zip_longest(answers, golds), strict=True)
        }
        yield [_record(unit, label, index, results[source], plain) for index, source in enumerate(sources)]


def _record(unit: Unit, label: str, index: int, result: CaseResult, plain: Sequence[GoldScore]) -> Record:
    """Make the record of case ``index`` from its result. ``plain`` has the plain model's scores of all cases."""
    case, ran, method = unit.cases[index], unit.cases[result.source], unit.methods[label]
    written, gold = result.written, result.gold
    answer = written or (gold.answer if gold else None)
    assert answer is not None  # every unit has a measure
    unchanged = range(len(ran.documents)) if method.acts_on == "nothing" else ()
    return Record(
        id=case.id,
        task=unit.task.name,
        model=unit.model,
        method=label,
        question=case.question,
        group=case.group,
        documents=len(case.documents),
        gold_position=case.gold_position,
        order=case.order,
        seed=case.seed,
        prediction=answer.prediction,
        score=unit.task.score(case, answer.prediction) if written else None,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        seconds=result.seconds + (gold.seconds if gold else 0.0),
        method_ran=answer.report.method_ran,
        reason=answer.report.reason,
        shown=ranking(ran.contents or ran.documents, answer.report.order or unchanged),
        logprob=gold.logprob if gold else None,
        answer_tokens=gold.tokens if gold else None,
        kl=gold.divergence(plain[index]) if gold else None,
        agrees=gold.agrees(plain[index]) if gold else None,
        shorten=case.shorten,
        copied=index != result.source,
    )
