"""The engine ``local``: answers units in sequence in this process, with one model in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest

from ragbias.errors import RagBiasError
from ragbias.evaluation.bench.plan import Unit
from ragbias.evaluation.data.records import Record
from ragbias.evaluation.names import ACCURACY, LOGPROB
from ragbias.evaluation.tasks.gold_answers import GoldScore, gold_score
from ragbias.evaluation.tasks.orders import ranking
from ragbias.evaluation.tasks.task import Answer
from ragbias.lm import DebiasedLM
from ragbias.methods import NoMethod


class Models:
    """Loads models by name, onto the GPU if there is one, and holds the last one."""

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
    """The records of each method in turn."""
    plain: list[GoldScore] = []  # computed once, as every method is compared with it
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
            where = f"task {unit.task.name}, method {label}, case {unit.cases[0].id!r} and those batched with it"
            raise type(error)(f"{where}: {error}") from error
        given = dict(zip(distinct, zip_longest(answers, golds), strict=True))
        records = []
        for index, source in enumerate(sources):
            answer, gold = given[source]
            record = _record(unit, label, index, source, answer, gold)
            if gold is not None:
                record = replace(
                    record,
                    seconds=gold.seconds,
                    logprob=gold.logprob,
                    answer_tokens=gold.tokens,
                    kl=gold.divergence(plain[index]),
                    agrees=gold.agrees(plain[index]),
                )
            records.append(replace(record, seconds=record.seconds + seconds))
        yield records


def _record(unit: Unit, label: str, index: int, source: int, given: Answer | None, gold: GoldScore | None) -> Record:
    """The record of the case ``index``, which ran as the case ``source``, without its times and log-probability."""
    case, ran, method = unit.cases[index], unit.cases[source], unit.methods[label]
    answer = given or (gold.answer if gold else None)
    assert answer is not None  # a unit measures something
    as_given = range(len(ran.documents)) if method.acts_on == "nothing" else ()
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
        score=unit.task.score(case, answer.prediction) if given else None,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        seconds=0.0,
        method_ran=answer.report.method_ran,
        reason=answer.report.reason,
        shown=ranking(ran.contents or ran.documents, answer.report.order or as_given),
        shorten=case.shorten,
        copied=index != source,
    )
