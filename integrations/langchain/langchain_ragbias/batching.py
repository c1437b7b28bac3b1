"""Requests that several runs make at the same time, answered as one padded batch.

LangChain gives every conversation of a batch a run of its own: callbacks, cache, errors. Those stay as they are. Each
run submits its request to the batch instead of answering it; when all runs have done so, or ended without a request (a
cache knew the answer, or there was an error), the requests are answered together.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ragbias.generation.report import Generation
from ragbias.generation.request import Request

SECONDS_TO_END = 2.0  # for runs that are left; then they go on unheard
T = TypeVar("T")
Answerer = Callable[..., list[Generation]]
"""Called with the requests, their settings and the event that cancels them."""
Ended = SimpleQueue[BaseException | None]
"""Gets what ended the runs of a batch: nothing, if each has its result or error."""


class PaddedBatch:
    """Collects one request of each run and answers all at once.

    Args:
        runs: number of runs.
        answer: answers all requests.
    """

    def __init__(self, runs: int, answer: Answerer) -> None:
        self.cancelled = threading.Event()
        self._awaited, self._answer = runs, answer
        self._waiting: list[tuple[Request, dict[str, Any], Future[Generation]]] = []
        self._lock = threading.Lock()

    def submit(self, request: Request, settings: dict[str, Any]) -> Future[Generation]:
        """Add a run's request; the last one starts the computation, in a thread of its own.

        Raises:
            CancelledError: the batch was cancelled.
        """
        future: Future[Generation] = Future()
        with self._lock:
            if self.cancelled.is_set():
                raise CancelledError
            self._waiting.append((request, settings, future))
        self.skip()
        return future

    def skip(self) -> None:
        """Wait no longer for one of the runs."""
        with self._lock:
            self._awaited -= 1
            complete = self._awaited == 0 and bool(self._waiting)
        if complete:
            threading.Thread(target=self._run, daemon=True, name="ragbias-batch").start()

    def cancel(self) -> None:
        """Stop computing at the next token, and let no run wait for an answer."""
        self.cancelled.set()
        for *_, future in self._take():
            _settle(future, CancelledError())

    def _run(self) -> None:
        waiting = list(self._waiting)
        try:
            outcomes: Sequence[Generation | BaseException] = self._answer(
                [request for request, *_ in waiting], waiting[0][1], self.cancelled
            )
            if self.cancelled.is_set():
                raise CancelledError
        except BaseException as error:
            outcomes = [error] * len(waiting)
        taken = self._take()  # nothing, if the batch was cancelled meanwhile
        for (*_, future), outcome in zip(taken, outcomes, strict=bool(taken)):
            _settle(future, outcome)

    def _take(self) -> list[tuple[Request, dict[str, Any], Future[Generation]]]:
        """Those who wait; whoever takes them settles them."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting


def _settle(future: Future[Any], outcome: object) -> None:
    if future.set_running_or_notify_cancel():  # an async run may have given up
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class _Slot:
    """Lets one run submit to a batch: the first request that the run makes to the batch's model."""

    def __init__(self, batch: PaddedBatch, model: object) -> None:
        self._batch, self._model, self._free = batch, model, True

    def take(self, model: object) -> PaddedBatch | None:
        if not self._free or model is not self._model:
            return None
        self._free = False
        return self._batch


_slot: ContextVar[_Slot | None] = ContextVar("langchain_ragbias_slot", default=None)


def batch_of(model: object) -> PaddedBatch | None:
    """Where this run's request goes; ``None`` for a run outside of batches, which is answered at once."""
    slot = _slot.get()
    return None if slot is None else slot.take(model)


@contextmanager
def _slot_in(batch: PaddedBatch, model: object) -> Iterator[None]:
    slot = _Slot(batch, model)
    _slot.set(slot)  # in the context of this run's own thread or task
    try:
        yield
    finally:
        if slot.take(model):
            batch.skip()


def run_batched(model: object, runs: Sequence[Callable[[], T]], size: int, answer: Answerer) -> list[T | BaseException]:
    """The results or errors of runs that ask ``model``, in padded batches of at most ``size``."""

    def perform(run: Callable[[], T], batch: PaddedBatch, future: Future[T]) -> None:
        try:
            with _slot_in(batch, model):
                result = run()
        except BaseException as error:  # given to whoever waits for the run
            _settle(future, error)
        else:
            _settle(future, result)

    def conduct(
        calls: Sequence[Callable[[], None]], batch: PaddedBatch, futures: Sequence[Future[T]], ended: Ended
    ) -> None:
        try:
            for call in calls:
                # no pool: the end of a program waits for a pool's threads
                threading.Thread(target=call, daemon=True, name="ragbias-run").start()
            wait(futures)
        except BaseException as error:  # no thread can be started, say
            batch.cancel()
            ended.put(error)
        else:
            ended.put(None)

    results: list[T | BaseException] = []
    for group, batch in _batches(runs, size, answer):
        futures: list[Future[T]] = [Future() for _ in group]
        calls = [
            partial(copy_context().run, perform, run, batch, future) for run, future in zip(group, futures, strict=True)
        ]
        ended: Ended = SimpleQueue()
        with _cancelled_if_left(batch, ended):
            # Ctrl-C inside of Thread or wait, which are Python, can end as a RuntimeError, or be lost
            _thread.start_new_thread(conduct, (calls, batch, futures, ended))
            error = ended.get()
        if error:
            raise error
        results += [future.exception() or future.result() for future in futures]
    return results


async def arun_batched(
    model: object, runs: Sequence[Callable[[], Awaitable[T]]], size: int, answer: Answerer
) -> list[T | BaseException]:
    """As ``run_batched``, with tasks instead of threads."""

    async def perform(run: Callable[[], Awaitable[T]], batch: PaddedBatch) -> T:
        with _slot_in(batch, model):
            return await run()

    results: list[T | BaseException] = []
    for group, batch in _batches(runs, size, answer):
        with _cancelled_if_left(batch):
            results += await asyncio.gather(*(perform(run, batch) for run in group), return_exceptions=True)
    return results


@contextmanager
def _cancelled_if_left(batch: PaddedBatch, ended: Ended | None = None) -> Iterator[None]:
    """Cancel the batch if it is left by an error, by Ctrl-C say, and wait a little for its runs to end."""
    try:
        yield
    except BaseException:
        batch.cancel()
        if ended:
            with suppress(Empty):
                ended.get(timeout=SECONDS_TO_END)
        raise


def _batches(runs: Sequence[T], size: int, answer: Answerer) -> Iterator[tuple[Sequence[T], PaddedBatch]]:
    for begin in range(0, len(runs), size):
        group = runs[begin : begin + size]
        yield group, PaddedBatch(len(group), answer)


def unless_failed(results: Sequence[T | BaseException]) -> list[T]:
    """The results, or the first error."""
    good: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        good.append(result)
    return good
