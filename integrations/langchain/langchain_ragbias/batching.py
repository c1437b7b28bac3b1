"""Answer the requests of several runs as one padded batch.

LangChain starts a run for each conversation of a batch, because callbacks, cache and errors belong to runs. Each run
submits its request to the batch and waits. A run with a cached answer or an error ends without a request. When all
runs have submitted a request or ended, the requests are answered together.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import TypeVar

from ragbias import Generation
from ragbias.call_site import remember_call_site
from ragbias.errors import CancelledError
from ragbias.generation import GenerationSettings, Request

CANCELLED = "the batch of this request was cancelled"
SECONDS_TO_END = 2.0  # maximum time to wait until cancelled runs end
T = TypeVar("T")
Answerer = Callable[[Sequence[Request], GenerationSettings, threading.Event], Sequence[Generation]]
"""A function that answers requests. It takes the requests, their settings, and an event that cancels them."""
Ended = SimpleQueue[BaseException | None]
"""A queue that receives one item when a batch ends: the error that ended it, or ``None``."""


@dataclass(frozen=True)
class _Waiting:
    """A submitted request, and the future on which its run waits."""

    request: Request
    settings: GenerationSettings
    future: Future[Generation]


class PaddedBatch:
    """Collect one request from each run, and answer all requests as one batch."""

    def __init__(self, runs: int, answer: Answerer) -> None:
        self.cancelled = threading.Event()
        self._n_outstanding = runs
        self._answer = answer
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()

    def submit(self, request: Request, settings: GenerationSettings) -> Future[Generation]:
        """Add a run's request. The last request starts the computation in a new thread."""
        future: Future[Generation] = Future()
        with self._lock:
            if self.cancelled.is_set():
                raise CancelledError(CANCELLED)
            self._waiting.append(_Waiting(request, settings, future))
        self.skip()
        return future

    def skip(self) -> None:
        """Stop waiting for the request of one run. If the batch waits for no other run, start the computation."""
        with self._lock:
            self._n_outstanding -= 1
            complete = self._n_outstanding == 0 and bool(self._waiting)
        if complete:
            threading.Thread(target=self._run, daemon=True, name="ragbias-batch").start()

    def cancel(self) -> None:
        """Stop the computation at the next token, and cancel all waiting runs."""
        self.cancelled.set()
        for waiting in self._take_waiting():
            waiting.future.set_exception(CancelledError(CANCELLED))

    def _run(self) -> None:
        waiting = list(self._waiting)
        outcomes: list[Generation | BaseException] = []
        try:
            # a callback may have called the model with other settings before its run did
            for settings, group in groupby(waiting, key=attrgetter("settings")):
                outcomes += self._answer_group([each.request for each in group], settings)
            if self.cancelled.is_set():
                raise CancelledError(CANCELLED)
        except BaseException as error:
            outcomes = [error] * len(waiting)
        taken = self._take_waiting()
        if not taken:  # the batch was cancelled
            return
        for each, outcome in zip(taken, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                each.future.set_exception(outcome)
            else:
                each.future.set_result(outcome)

    def _answer_group(self, requests: list[Request], settings: GenerationSettings) -> list[Generation | BaseException]:
        """Answer requests together. If this fails, answer each alone, so that only the failing requests get errors."""
        try:
            return [*self._answer(requests, settings, self.cancelled)]
        except Exception as error:
            if len(requests) == 1 or self.cancelled.is_set():
                return [error] * len(requests)
        return [outcome for request in requests for outcome in self._answer_group([request], settings)]

    def _take_waiting(self) -> list[_Waiting]:
        """Remove and return the waiting requests. The caller must set their results."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting


@dataclass
class Slot:
    """A run's place in a batch. Only the run's first request to ``model`` uses it."""

    model: object
    batch: PaddedBatch
    used: bool = False

    def take(self, model: object) -> PaddedBatch | None:
        """Return the batch for the first request to the slot's model, and ``None`` for all other requests."""
        if self.used or self.model is not model:
            return None
        self.used = True
        return self.batch


current_slot: ContextVar[Slot | None] = ContextVar("langchain_ragbias_slot", default=None)


@contextmanager
def _join_batch(batch: PaddedBatch, model: object) -> Iterator[None]:
    slot = Slot(model, batch)
    current_slot.set(slot)  # in the context of this run's thread or task
    try:
        yield
    finally:
        if not slot.used:
            batch.skip()


def run_batched(model: object, runs: Sequence[Callable[[], T]], size: int, answer: Answerer) -> list[T | BaseException]:
    """Run ``model`` in padded batches of at most ``size`` runs. Return each run's result or error."""

    def run_in_batch(run: Callable[[], T], batch: PaddedBatch, outcomes: dict[int, T | BaseException], i: int) -> None:
        try:
            with _join_batch(batch, model):
                outcomes[i] = run()
        except BaseException as error:  # raised in the caller
            outcomes[i] = error

    def start_and_wait(calls: Sequence[Callable[[], None]], batch: PaddedBatch, ended: Ended) -> None:
        failure: BaseException | None = None
        try:
            # not a pool, because the interpreter waits for the threads of pools at exit
            threads = [threading.Thread(target=call, daemon=True, name="ragbias-run") for call in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # for example, if no thread can be started
            batch.cancel()
            failure = error
        ended.put(failure)

    results: list[T | BaseException] = []
    for group, batch in _split_runs(runs, size, answer):
        outcomes: dict[int, T | BaseException] = {}
        ended: Ended = SimpleQueue()
        with _cancel_on_error(batch, ended):
            calls = [partial(copy_context().run, run_in_batch, run, batch, outcomes, i) for i, run in enumerate(group)]
            # Ctrl-C can be lost or become a RuntimeError in Thread.start and join, so another thread calls them
            _thread.start_new_thread(start_and_wait, (calls, batch, ended))
            error = ended.get()
        if error:
            raise error
        results += [outcomes[i] for i in range(len(group))]
    return results


async def arun_batched(
    model: object, runs: Sequence[Callable[[], Awaitable[T]]], size: int, answer: Answerer
) -> list[T | BaseException]:
    """Like ``run_batched``, but with asyncio tasks instead of threads."""

    async def run_in_batch(run: Callable[[], Awaitable[T]], batch: PaddedBatch) -> T:
        with _join_batch(batch, model):
            return await run()

    results: list[T | BaseException] = []
    for group, batch in _split_runs(runs, size, answer):
        with _cancel_on_error(batch):
            results += await asyncio.gather(*(run_in_batch(run, batch) for run in group), return_exceptions=True)
    return results


@contextmanager
def _cancel_on_error(batch: PaddedBatch, ended: Ended | None = None) -> Iterator[None]:
    """If the block raises an error (such as Ctrl-C), cancel the batch and wait briefly for its runs to end.

    Inside the block, warnings name the line of user code that started the batch.
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


def _split_runs(runs: Sequence[T], size: int, answer: Answerer) -> Iterator[tuple[Sequence[T], PaddedBatch]]:
    for begin in range(0, len(runs), size):
        group = runs[begin : begin + size]
        yield group, PaddedBatch(len(group), answer)


def raise_first_error(results: Sequence[T | BaseException]) -> list[T]:
    """Return the results, or raise the first error."""
    good: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        good.append(result)
    return good
