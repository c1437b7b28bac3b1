"""Padded batches of the prepared requests of many clients; streams run beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ragbias.adapters import asyncio_bridge as bridge
from ragbias.generation.report import Generation
from ragbias.generation.request import Request
from ragbias.generation.streaming import Stream
from ragbias.lm import DebiasedLM
from ragbias.serving.errors import ApiError
from ragbias.serving.settings import ServerSettings
from ragbias.serving.telemetry import Metrics

PREPARED_AT_ONCE = 4  # threads that tokenise, or run the model for a method that ranks documents
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
    """Answer prepared requests with one model.

    One padded batch runs at a time: the oldest request, and waiting requests with the same method and arguments, within
    the token budget. Up to ``max_streams`` streams run beside it, each alone. Use all methods from one event loop.
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
        """Count a request as waiting or running within the block.

        Raises:
            ApiError: 429, the queue is full.
        """
        if self._waiting >= self._settings.max_waiting:
            message = f"{self._waiting} requests are waiting; try again later"
            raise ApiError(429, message, None, "queue_full", retry_after=1)
        self._count(waiting=1)
        try:
            yield
        finally:
            self._count(waiting=-1)

    async def prepared(self, work: Callable[[threading.Event], T]) -> T:
        """The result of ``work``, which runs in a thread and gets the event that cancels it."""
        await self._preparing.acquire()
        loop = asyncio.get_running_loop()

        def limited(cancelled: threading.Event) -> T:
            try:
                return work(cancelled)
            finally:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._preparing.release)  # the thread outlives a client that leaves

        return await bridge.run(limited)

    async def answer(self, request: Request, arguments: dict[str, Any]) -> Generation:
        """The whole answer. Cancelling stops the computation at the next token."""
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
        """The pieces of an answer, then the whole. Closing the generator stops the computation."""
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
            if batch := self._next_batch():
                await self._run(batch)

    def _next_batch(self) -> list[_Job]:
        """Take the oldest job, and those that can share its batch, from the queue."""
        batch = self._jobs[:1]
        for job in self._jobs[1:]:
            most = max(each.tokens for each in (*batch, job)) * (len(batch) + 1)
            fits = len(batch) < self._settings.batch_size and most <= self._settings.max_batch_tokens
            if fits and job.arguments == batch[0].arguments and job.request.method == batch[0].request.method:
                batch.append(job)
        self._jobs = [job for job in self._jobs if job not in batch]
        return batch

    async def _run(self, jobs: Sequence[_Job]) -> None:
        """Answer a batch. After an error each job runs alone, so that only its client gets the error."""
        requests = [replace(job.request, cancelled=job.cancelled) for job in jobs]
        self._metrics.batches.labels(self._name).observe(len(jobs))
        self._count(running=len(jobs))
        try:
            answers = await bridge.run(
                lambda event: self._lm.batch(requests, batch_size=len(jobs), cancelled=event, **jobs[0].arguments)
            )
        except Exception as error:
            if len(jobs) == 1 and not jobs[0].future.done():
                jobs[0].future.set_exception(error)
        else:
            for job, answer in zip(jobs, answers, strict=True):
                if not job.future.done():
                    job.future.set_result(answer)
            return
        finally:
            self._count(running=-len(jobs))
        if len(jobs) > 1:
            for job in jobs:
                if not job.cancelled.is_set():
                    await self._run([job])
