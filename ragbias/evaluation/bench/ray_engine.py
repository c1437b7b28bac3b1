"""The engine ``ray``: worker processes, each with a model, answer units; a unit whose worker dies runs again."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from ragbias.errors import RunError
from ragbias.evaluation.bench.local_engine import Models, records_of
from ragbias.evaluation.bench.plan import Unit
from ragbias.evaluation.data.records import Record
from ragbias.extras import required

TRIES = 3  # of one unit whose worker dies, before the run ends
STORE_BYTES = 200 * 2**20  # of shared memory on this machine; units and records are small


class Worker:
    """An actor: answers units with its model, in its process."""

    def __init__(self, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._models = Models(dtype)

    def records(self, unit: Unit) -> list[list[Record]]:
        """The records of each method."""
        return list(records_of(unit, self._models.load(unit.model)))


def answered(units: Iterable[Unit], dtype: str, workers: int) -> Iterator[tuple[Unit, list[Record]]]:
    """The records of each unit, those of one method at a time; units come in the order in which they finish.

    Runs on the cluster that ``RAY_ADDRESS`` names, else on this machine.

    Raises:
        MissingExtraError: ray is not installed.
        RunError: ``TRIES`` workers died over the same unit.
    """
    ray = load_ray()
    started = not ray.is_initialized()
    if started:
        _start(ray, workers)
    try:
        yield from _answered(ray, iter(units), dtype, workers)
    finally:
        if started:
            ray.shutdown()


def _answered(ray: Any, units: Iterator[Unit], dtype: str, workers: int) -> Iterator[tuple[Unit, list[Record]]]:
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
            found = ray.get(done)
        except ray.exceptions.RayActorError as error:
            raise RunError(
                f"{TRIES} workers died over task {unit.task.name}, case {unit.cases[0].id!r} and those batched with "
                f"it; is there memory for {workers} models? {error}"
            ) from None
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        if (following := next(units, None)) is not None:
            running[actor.records.remote(following)] = actor, following
        for records in found:
            yield unit, records


def load_ray() -> Any:
    """Ray's module.

    Raises:
        MissingExtraError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of other workers when a run ends with an error
    required("ray.exceptions", "ray")  # not loaded by ``ray`` itself
    return required("ray", "ray")


def _start(ray: Any, workers: int) -> None:
    quiet: dict[str, Any] = dict(log_to_driver=False, logging_level=logging.ERROR)
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, **quiet)
    else:
        own: dict[str, Any] = dict(include_dashboard=False, num_cpus=workers, object_store_memory=STORE_BYTES)
        ray.init(address="local", **own, **quiet)
