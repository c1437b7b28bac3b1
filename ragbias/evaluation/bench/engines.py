"""Bench engines: one model in this process, or one model per Ray worker."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any

import torch

from ragbias.errors import RagBiasError, RunError
from ragbias.evaluation import ACCURACY, LOGPROB
from ragbias.evaluation.bench.plan import Unit
from ragbias.evaluation.data.records import Record
from ragbias.evaluation.tasks.orders import ranking
from ragbias.evaluation.tasks.task import Answer, GoldScore, gold_score
from ragbias.extras import required
from ragbias.lm import DebiasedLM
from ragbias.methods import NoMethod

TRIES = 3  # attempts at a unit whose worker dies; then the run fails
STORE_BYTES = 200 * 2**20  # shared memory for Ray; units and records are small


class Models:
    """Load models by name, onto the GPU if there is one. Only the last model stays loaded."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._lm: DebiasedLM | None = None

    def load(self, name: str) -> DebiasedLM:
        if self._lm is None or self._lm.name != name:
            self._lm = None  # two models may not fit into memory
            self._lm = DebiasedLM.from_pretrained(name, "none", dtype=self._dtype, device="auto")
        return self._lm


def run_here(units: Iterable[Unit], models: Models) -> Iterator[tuple[Unit, list[Record]]]:
    """Yield the records of every unit, one method at a time."""
    for unit in units:
        for records in records_of(unit, models.load(unit.model)):
            yield unit, records


def records_of(unit: Unit, lm: DebiasedLM) -> Iterator[list[Record]]:
    """Yield the records of the unit, one list per method."""
    plain: list[GoldScore] = []  # computed once for all methods, which are compared with it
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
        results = dict(zip(distinct, zip_longest(answers, golds), strict=True))
        records = []
        for index, source in enumerate(sources):
            answer, gold = results[source]
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


def _record(unit: Unit, label: str, index: int, source: int, written: Answer | None, gold: GoldScore | None) -> Record:
    """Make the record of case ``index`` from the answer to case ``source``, without times and log-probability."""
    case, ran, method = unit.cases[index], unit.cases[source], unit.methods[label]
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
        seconds=0.0,
        method_ran=answer.report.method_ran,
        reason=answer.report.reason,
        shown=ranking(ran.contents or ran.documents, answer.report.order or unchanged),
        shorten=case.shorten,
        copied=index != source,
    )


class Worker:
    """A Ray actor that answers units with a model in its own process."""

    def __init__(self, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._models = Models(dtype)

    def records(self, unit: Unit) -> list[list[Record]]:
        """Return the records of the unit, one list per method."""
        return list(records_of(unit, self._models.load(unit.model)))


def run_by_ray(units: Iterable[Unit], dtype: str, workers: int) -> Iterator[tuple[Unit, list[Record]]]:
    """Yield the records of each unit, one method at a time, in the order in which the units finish.

    A unit whose worker dies runs again. Workers run on the Ray cluster at ``RAY_ADDRESS``, else on this machine.
    """
    ray = load_ray()
    started = not ray.is_initialized()
    if started:
        _start(ray, workers)
    try:
        yield from _run_in_ray(ray, iter(units), dtype, workers)
    finally:
        if started:
            ray.shutdown()


def _run_in_ray(ray: Any, units: Iterator[Unit], dtype: str, workers: int) -> Iterator[tuple[Unit, list[Record]]]:
    gpus = ray.cluster_resources().get("GPU", 0)
    actors = ray.remote(num_cpus=1, num_gpus=min(1, gpus / workers), max_restarts=-1, max_task_retries=TRIES - 1)(
        Worker
    )
    threads = max(1, (os.cpu_count() or 1) // workers)
    running: dict[Any, tuple[Any, Unit]] = {}
    for unit in islice(units, workers):
        actor = actors.remote(dtype, threads)
        running[actor.records.remote(unit)] = actor, unit
    while running:
        (done,), _ = ray.wait(list(running), num_returns=1)
        actor, unit = running.pop(done)
        try:
            unit_records = ray.get(done)
        except ray.exceptions.RayActorError as error:
            raise RunError(
                f"{TRIES} workers died while running task {unit.task.name}, batch of case {unit.cases[0].id!r}; is "
                f"there memory for {workers} models? {error}"
            ) from None
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        if (following := next(units, None)) is not None:
            running[actor.records.remote(following)] = actor, following
        for records in unit_records:
            yield unit, records


def load_ray() -> Any:
    """Import Ray with settings that silence it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # to silence a warning
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # to silence other workers after an error
    required("ray.exceptions", "ray")  # ``import ray`` does not load it
    return required("ray", "ray")


def _start(ray: Any, workers: int) -> None:
    quiet: dict[str, Any] = dict(log_to_driver=False, logging_level=logging.ERROR)
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, **quiet)
    else:
        sizes: dict[str, Any] = dict(include_dashboard=False, num_cpus=workers, object_store_memory=STORE_BYTES)
        ray.init(address="local", **sizes, **quiet)
