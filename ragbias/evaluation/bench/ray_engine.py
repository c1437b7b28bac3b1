"""The engine ``ray``: worker processes, each with a model, answer units; one whose worker dies is tried again."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ragbias.errors import RunError
from ragbias.evaluation.bench.local_engine import Models, records_of
from ragbias.evaluation.bench.plan import Unit
from ragbias.evaluation.data.records import Record
from ragbias.extras import required

TRIES = 3  # of one unit whose worker dies; then the unit is taken to be the cause
STORE_BYTES = 200 * 2**20  # of shared memory on a machine of our own; units and records are small


class Worker:
    """An actor: answers units with a model of its own, in a process of its own."""

    def __init__(self, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._models = Models(dtype)

    def records(self, unit: Unit) -> list[list[Record]]:
        """The records of each method."""
        return list(records_of(unit, self._models.load(unit.model)))


def answered(units: Iterable[Unit], dtype: str, workers: int) -> Iterator[tuple[Unit, list[Record]]]:
    """The records of each unit, those of one method at a time; units come in the order in which they are finished.

    Runs on the cluster that ``RAY_ADDRESS`` names, else on this machine.

    Raises:
        MissingExtraError: ray is not installed.
        RunError: workers die over the same unit again and again.
    """
    ray = load_ray()
    started = not ray.is_initialized()
    if started:
        _start(ray, workers)
    try:
        yield from _Pool(ray, dtype, workers).answered(iter(units))
    finally:
        if started:
            ray.shutdown()


class _Pool:
    """Workers, and the unit that each of them is answering."""

    def __init__(self, ray: Any, dtype: str, workers: int) -> None:
        gpus = ray.cluster_resources().get("GPU", 0)
        self._ray = ray
        self._workers = workers
        self._class = ray.remote(num_cpus=1, num_gpus=min(1, gpus / workers))(Worker)
        self._arguments = (dtype, max(1, (os.cpu_count() or 1) // workers))
        self._running: dict[Any, tuple[Any, Unit]] = {}

    def answered(self, units: Iterator[Unit]) -> Iterator[tuple[Unit, list[Record]]]:
        for _, unit in zip(range(self._workers), units, strict=False):
            self._assign(self._class.remote(*self._arguments), unit)
        deaths: Counter[tuple[Any, ...]] = Counter()
        while self._running:
            (done,), _ = self._ray.wait(list(self._running), num_returns=1)
            actor, unit = self._running.pop(done)
            try:
                found = self._ray.get(done)
            except self._ray.exceptions.RayActorError as error:
                name = (unit.model, unit.task.name, unit.noise, unit.cases[0].id)
                deaths[name] += 1
                if deaths[name] == TRIES:
                    raise RunError(
                        f"{TRIES} workers died over task {unit.task.name}, case {unit.cases[0].id!r} and those "
                        f"batched with it; is there memory for {self._workers} models? {error}"
                    ) from None
                self._assign(self._class.remote(*self._arguments), unit)
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            if (following := next(units, None)) is not None:
                self._assign(actor, following)
            for records in found:
                yield unit, records

    def _assign(self, actor: Any, unit: Unit) -> None:
        self._running[actor.records.remote(unit)] = actor, unit


def load_ray() -> Any:
    """Ray's module.

    Raises:
        MissingExtraError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning of a change to come
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # what other workers met when a run ends with an error
    required("ray.exceptions", "ray")  # not loaded by ``ray`` itself
    return required("ray", "ray")


def _start(ray: Any, workers: int) -> None:
    quiet: dict[str, Any] = dict(log_to_driver=False, logging_level=logging.ERROR)
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, **quiet)
    else:
        own: dict[str, Any] = dict(include_dashboard=False, num_cpus=workers, object_store_memory=STORE_BYTES)
        ray.init(address="local", **own, **quiet)
