"""The engine ``local``: units answered one after the other in this process, with one model in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from ragbias.errors import RagBiasError
from ragbias.evaluation.bench.plan import Unit
from ragbias.evaluation.data.records import Record
from ragbias.evaluation.names import ACCURACY, LOGPROB
from ragbias.evaluation.tasks.gold_answers import GoldScore, gold_score
from ragbias.evaluation.tasks.orders import ranking
from ragbias.evaluation.tasks.task import Answer, Case, Task
from ragbias.generation.report import Report
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, NoMethod


class Models:
    """Loads models by name, onto the GPU if there is one, and keeps the last one."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._lm: DebiasedLM | None = None

    def load(self, name: str) -> DebiasedLM:
        if self._lm is None or self._lm.name != name:
            self._lm = None  # two at once may not fit into memory
            self._lm = DebiasedLM.from_pretrained(name, "none", dtype=self._dtype, device="auto")
        return self._lm


def answered(units: Iterable[Unit], models: Models) -> Iterator[tuple[Unit, list[Record]]]:
    """The records of each unit, those of one method at a time."""
    for unit in units:
        for records in records_of(unit, models.load(unit.model)):
            yield unit, records


def records_of(unit: Unit, lm: DebiasedLM) -> Iterator[list[Record]]:
    """The records of one method after the other."""
    plain: list[GoldScore] = []  # made once, as every method is compared with it
    for label, method in unit.methods.items():
        answers: list[Answer] = []
        golds: list[GoldScore] = []
        sources = unit.sources(method)
        asked = list(dict.fromkeys(sources))
        cases = [unit.cases[index] for index in asked]
        begin = time.perf_counter()
        try:
            if ACCURACY in unit.measures:
                answers = unit.task.answers(lm, cases, method, unit.batch_size)
            seconds = (time.perf_counter() - begin) / len(cases)
            if LOGPROB in unit.measures:
                plain = plain or _golds(unit.task, unit.cases, lm, NoMethod())
                golds = plain if method == NoMethod() else _golds(unit.task, cases, lm, method)
        except RagBiasError as error:
            where = f"task {unit.task.name}, method {label}, case {unit.cases[0].id!r} and those batched with it"
            raise type(error)(f"{where}: {error}") from error
        given = dict(zip(asked, zip_longest(answers, golds), strict=True))
        yield [
            _record(unit, label, seconds, index, source, *given[source], plain[index] if golds else None)
            for index, source in enumerate(sources)
        ]


def _golds(task: Task, cases: Sequence[Case], lm: DebiasedLM, method: Method) -> list[GoldScore]:
    return [gold_score(lm, task, case, method) for case in cases]


def _record(
    unit: Unit,
    label: str,
    seconds: float,
    index: int,
    source: int,
    given: Answer | None,
    gold: GoldScore | None,
    plain: GoldScore | None,
) -> Record:
    """The record of a case, ``index``, with its answer, the probability of its gold answer, or both.

    Args:
        source: the case that was asked for it.
        plain: the probability with the plain model, which ``gold`` is compared with.
    """
    case, asked = unit.cases[index], unit.cases[source]
    answer = given or (gold.answer if gold else None)
    assert answer is not None  # a unit measures something
    record = Record(
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
        score=unit.task.score(case, answer.prediction) if given else None,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        seconds=seconds,
        method_ran=answer.report.method_ran,
        reason=answer.report.reason,
        shown=_shown(asked, answer.report, unit.methods[label]),
        shorten=case.shorten,
        copied=index != source,
    )
    if gold is None or plain is None:
        return record
    return replace(
        record,
        seconds=seconds + gold.seconds,
        logprob=gold.logprob,
        answer_tokens=gold.tokens,
        kl=gold.divergence(plain),
        agrees=gold.agrees(plain),
    )


def _shown(case: Case, report: Report, method: Method) -> tuple[int, ...]:
    """What ``Record.shown`` holds."""
    as_given = range(len(case.documents)) if method.acts_on == "nothing" else ()
    return ranking(case.contents or case.documents, report.order or as_given)
