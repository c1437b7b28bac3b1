"""Prepared requests of many clients, put into padded batches; streamed ones run beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ragbias.adapters import asyncio_bridge as bridge
from ragbias.generation.report import Generation
from ragbias.generation.request import Request
from ragbias.generation.streaming import Stream
from ragbias.lm import DebiasedLM
from ragbias.serving.errors import ApiError
from ragbias.serving.metrics import Metrics
from ragbias.serving.settings import ServerSettings

PREPARED_AT_ONCE = 4  # in threads: tokenising waits for nothing, and a method that ranks runs the model there
T = TypeVar("T")


@dataclass(eq=False)
class _Job:
    request: Request
    arguments: dict[str, Any]
    future: asyncio.Future[Generation]
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def tokens(self) -> int:
        return len(self.request.tokens.ids) + int(self.arguments.get("max_new_tokens") or 0)


class Scheduler:
    """Answers prepared requests with one model.

    One padded batch runs at a time: the request that has waited longest, and those of the same method and arguments
    that wait beside it, as far as the budget goes. Up to ``max_streams`` streams run beside it, each by itself. All
    methods belong to one event loop.
    """

    def __init__(self, lm: DebiasedLM, name: str, settings: ServerSettings, metrics: Metrics) -> None:
        self._lm, self._name, self._settings, self._metrics = lm, name, settings, metrics
        self._jobs: list[_Job] = []
        self._worker: asyncio.Task[None] | None = None
        self._streams = asyncio.Semaphore(settings.max_streams)
        self._preparing = asyncio.Semaphore(PREPARED_AT_ONCE)
        self._waiting = self._running = 0

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Around all that is done for one request.

        Raises:
            ApiError: 429, too many wait already.
        """
        if self._waiting >= self._settings.max_waiting:
            raise ApiError(
                429, f"{self._waiting} requests are waiting; try again later", None, "queue_full", retry_after=1
            )
        self._count(waiting=1)
        try:
            yield
        finally:
            self._count(waiting=-1)

    async def prepared(self, work: Callable[[threading.Event], T]) -> T:
        """The result of ``work``, which makes a request ready in a thread; it is given the event that cancels it."""
        async with self._preparing:
            return await bridge.run(work)

    async def answer(self, request: Request, arguments: dict[str, Any]) -> Generation:
        """The whole answer; cancelling the caller ends its computation at the next token."""
        job = _Job(request, arguments, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            return await job.future
        finally:
            job.cancelled.set()
            if job in self._jobs:
                self._jobs.remove(job)

    async def pieces(self, request: Request, arguments: dict[str, Any]) -> AsyncGenerator[str | Generation, None]:
        """The pieces of an answer and, last, the whole; closing the generator ends the computation."""
        async with self._streams:
            self._count(running=1)
            try:
                stream: Stream = self._lm.stream(request, **arguments)
                async with aclosing(bridge.pieces(stream)) as pieces:
                    async for piece in pieces:
                        yield piece
                yield stream.generation
            finally:
                self._count(running=-1)

    def _count(self, waiting: int = 0, running: int = 0) -> None:
        self._waiting += waiting - running
        self._running += running
        self._metrics.waiting.labels(self._name).set(self._waiting)
        self._metrics.running.labels(self._name).set(self._running)

    async def _work(self) -> None:
        while self._jobs:
            if len(self._jobs) < self._settings.batch_size and self._settings.batch_wait_ms:
                await asyncio.sleep(self._settings.batch_wait_ms / 1000)
            if together := self._next():
                await self._run(together)

    def _next(self) -> list[_Job]:
        """The job that has waited longest and those that can run with it, which wait no more."""
        together = self._jobs[:1]
        for job in self._jobs[1:]:
            most = max(each.tokens for each in (*together, job)) * (len(together) + 1)
            fits = len(together) < self._settings.batch_size and most <= self._settings.max_batch_tokens
            if fits and job.arguments == together[0].arguments and job.request.method == together[0].request.method:
                together.append(job)
        self._jobs = [job for job in self._jobs if job not in together]
        return together

    async def _run(self, jobs: Sequence[_Job]) -> None:
        """Answer jobs together; after an error, each by itself, so that it is told to whoever it concerns."""
        requests = [replace(job.request, cancelled=job.cancelled) for job in jobs]
        self._metrics.batches.labels(self._name).observe(len(jobs))
        self._count(running=len(jobs))
        try:
            answers = await bridge.run(
                lambda event: self._lm.batch(requests, batch_size=len(jobs), cancelled=event, **jobs[0].arguments)
            )
        except Exception as error:
            if len(jobs) == 1:
                _settle(jobs[0], error)
                return
        else:
            for job, answer in zip(jobs, answers, strict=True):
                _settle(job, answer)
            return
        finally:
            self._count(running=-len(jobs))
        for job in jobs:
            if not job.cancelled.is_set():
                await self._run([job])


def _settle(job: _Job, outcome: Generation | Exception) -> None:
    if job.future.done():
        return
    if isinstance(outcome, Exception):
        job.future.set_exception(outcome)
    else:
        job.future.set_result(outcome)
