"""Answer the requests of several runs as one padded batch.

LangChain starts a run for every conversation of a batch, with callbacks, cache and errors. Each run submits its request
to the batch. When all runs have submitted a request, or ended without one (cached answers and errors), the requests are
answered together.
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
from itertools import groupby
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ragbias import Generation
from ragbias.call_site import remember_call_site
from ragbias.generation import GenerationSettings, Request

SECONDS_TO_END = 2.0  # time to wait for cancelled runs
T = TypeVar("T")
Answerer = Callable[[Sequence[Request], GenerationSettings, threading.Event], Sequence[Generation]]
"""Function of the requests, their settings, and an event that cancels them."""
Ended = SimpleQueue[BaseException | None]
"""Queue that receives the error that ended a batch, or ``None`` if each run has its result or error."""


class PaddedBatch:
    """Collect one request from each run, and answer all requests as one batch."""

    def __init__(self, runs: int, answer: Answerer) -> None:
        self.cancelled = threading.Event()
        self._awaited, self._answer = runs, answer
        self._waiting: list[tuple[Request, GenerationSettings, Future[Generation]]] = []
        self._lock = threading.Lock()

    def submit(self, request: Request, settings: GenerationSettings) -> Future[Generation]:
        """Add a run's request. The last request starts the computation in a new thread."""
        future: Future[Generation] = Future()
        with self._lock:
            if self.cancelled.is_set():
                raise CancelledError
            self._waiting.append((request, settings, future))
        self.skip()
        return future

    def skip(self) -> None:
        """Stop waiting for one run. Start the batch if no other run is outstanding."""
        with self._lock:
            self._awaited -= 1
            complete = self._awaited == 0 and bool(self._waiting)
        if complete:
            threading.Thread(target=self._run, daemon=True, name="ragbias-batch").start()

    def cancel(self) -> None:
        """Stop the computation at the next token, and cancel all waiting runs."""
        self.cancelled.set()
        for *_, future in self._take():
            _resolve(future, CancelledError())

    def _run(self) -> None:
        waiting = list(self._waiting)
        outcomes: list[Generation | BaseException] = []
        try:
            # settings differ if a callback calls the model before the run does
            for settings, group in groupby(waiting, key=itemgetter(1)):
                outcomes += self._answer([request for request, *_ in group], settings, self.cancelled)
            if self.cancelled.is_set():
                raise CancelledError
        except BaseException as error:
            outcomes = [error] * len(waiting)
        taken = self._take()  # empty if the batch was cancelled
        for (*_, future), outcome in zip(taken, outcomes, strict=bool(taken)):
            _resolve(future, outcome)

    def _take(self) -> list[tuple[Request, GenerationSettings, Future[Generation]]]:
        """Remove and return the waiting requests. The caller sets their results."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting


def _resolve(future: Future[Any], outcome: object) -> None:
    if future.set_running_or_notify_cancel():  # async runs may have been cancelled
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


Slot = list[tuple[object, PaddedBatch]]
"""The batch for the run's first request to the batch's model. Empty after this request."""
_slot: ContextVar[Slot | None] = ContextVar("langchain_ragbias_slot", default=None)


def batch_of(model: object) -> PaddedBatch | None:
    """Return the batch for this run's request, or ``None`` outside batches."""
    slot = _slot.get()
    return slot.pop()[1] if slot and slot[0][0] is model else None


@contextmanager
def _slot_in(batch: PaddedBatch, model: object) -> Iterator[None]:
    slot: Slot = [(model, batch)]
    _slot.set(slot)  # in the context of this run's thread or task
    try:
        yield
    finally:
        if slot:
            batch.skip()


def run_batched(model: object, runs: Sequence[Callable[[], T]], size: int, answer: Answerer) -> list[T | BaseException]:
    """Run ``model`` in padded batches of at most ``size`` runs. Return each run's result or error."""

    def perform(run: Callable[[], T], batch: PaddedBatch, future: Future[T]) -> None:
        outcome: T | BaseException
        try:
            with _slot_in(batch, model):
                outcome = run()
        except BaseException as error:  # raised in the caller
            outcome = error
        _resolve(future, outcome)

    def conduct(
        calls: Sequence[Callable[[], None]], batch: PaddedBatch, futures: Sequence[Future[T]], ended: Ended
    ) -> None:
        failure: BaseException | None = None
        try:
            for call in calls:
                # not a pool, because the interpreter waits for the threads of pools at exit
                threading.Thread(target=call, daemon=True, name="ragbias-run").start()
            wait(futures)
        except BaseException as error:  # for example, if no thread can be started
            batch.cancel()
            failure = error
        ended.put(failure)

    results: list[T | BaseException] = []
    for group, batch in _batches(runs, size, answer):
        futures: list[Future[T]] = [Future() for _ in group]
        ended: Ended = SimpleQueue()
        with _cancelled_if_left(batch, ended):
            calls = [
                partial(copy_context().run, perform, run, batch, future)
                for run, future in zip(group, futures, strict=True)
            ]
            # Thread and wait are Python code, in which Ctrl-C can be lost or become a RuntimeError
            _thread.start_new_thread(conduct, (calls, batch, futures, ended))
            error = ended.get()
        if error:
            raise error
        results += [future.exception() or future.result() for future in futures]
    return results


async def arun_batched(
    model: object, runs: Sequence[Callable[[], Awaitable[T]]], size: int, answer: Answerer
) -> list[T | BaseException]:
    """Like ``run_batched``, with asyncio tasks instead of threads."""

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
    """Cancel the batch after an error such as Ctrl-C, and wait briefly until its runs end.

    Warnings of the runs refer to the line that started the batch.
    """
    forget_call_site = remember_call_site()
    try:
        yield
    except BaseException:
        batch.cancel()
        if ended:
            with suppress(Empty):
                ended.get(timeout=SECONDS_TO_END)
        raise
    finally:
        forget_call_site()


def _batches(runs: Sequence[T], size: int, answer: Answerer) -> Iterator[tuple[Sequence[T], PaddedBatch]]:
    for begin in range(0, len(runs), size):
        group = runs[begin : begin + size]
        yield group, PaddedBatch(len(group), answer)


def unless_failed(results: Sequence[T | BaseException]) -> list[T]:
    """Return the results, or raise the first error."""
    good: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        good.append(result)
    return good
