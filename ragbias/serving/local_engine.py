"""Models that run in this process. Complete answers run in batches. Streams run concurrently."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from ragbias.frameworks import asyncio_bridge as bridge
from ragbias.generation import Generation, GenerationSettings, Request
from ragbias.lm import DebiasedLM
from ragbias.serving.engine import ModelEngine, ServedModel
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ServerSettings


def local_engine(
    load: Callable[[], Mapping[str, DebiasedLM]], settings: ServerSettings, metrics: Metrics
) -> ModelEngine:
    """Create an engine for local models. ``load`` returns the models by name."""
    return ModelEngine(lambda: [LocalModel(lm, name, settings, metrics) for name, lm in load().items()])


@dataclass(eq=False)
class _Job:
    request: Request
    settings: GenerationSettings
    salt: str
    future: asyncio.Future[Generation]
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def tokens(self) -> int:
        return len(self.request.tokens.ids) + self.settings.max_new_tokens

    @property
    def batch_key(self) -> tuple[object, ...]:
        """The properties that all jobs of a batch must share."""
        return self.settings, self.request.method, self.salt


class LocalModel(ServedModel):
    """A model in this process.

    One padded batch runs at a time. It contains the oldest request, and those later requests with the same method,
    settings and salt that fit the token budget. Up to ``max_streams`` streams run at the same time as the batch.
    """

    def __init__(self, lm: DebiasedLM, name: str, settings: ServerSettings, metrics: Metrics) -> None:
        super().__init__(lm, name, settings, metrics)
        self._jobs: list[_Job] = []
        self._worker: asyncio.Task[None] | None = None

    async def answer(self, request: Request, settings: GenerationSettings, salt: str = "") -> Generation:
        salt = "" if self.lm.cache is None else salt
        job = _Job(request, settings, salt, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            return await job.future
        finally:
            job.cancelled.set()
            if job in self._jobs:
                self._jobs.remove(job)

    async def pieces(
        self, request: Request, settings: GenerationSettings, salt: str = ""
    ) -> AsyncGenerator[str | Generation, None]:
        async with self.running(streamed=True):
            stream = self._model_for(salt).stream_answer(request, settings)
            async with aclosing(bridge.pieces(stream)) as pieces:
                async for piece in pieces:
                    yield piece
            yield stream.generation

    def _model_for(self, salt: str) -> DebiasedLM:
        """Return the model with a cache that contains only the documents of this salt."""
        if self.lm.cache is None:
            return self.lm
        lm = copy.copy(self.lm)
        lm.cache = self.lm.cache.with_salt(salt)
        return lm

    async def _work(self) -> None:
        while self._jobs:
            if len(self._jobs) < self.settings.max_batch and self.settings.batch_wait_ms:
                await asyncio.sleep(self.settings.batch_wait_ms / 1000)
            if batch := self._next_batch():
                await self._run(batch)

    def _next_batch(self) -> list[_Job]:
        """Remove and return the oldest job and all jobs that can share its batch."""
        batch = self._jobs[:1]
        for job in self._jobs[1:]:
            n_tokens = max(member.tokens for member in (*batch, job)) * (len(batch) + 1)
            fits = len(batch) < self.settings.max_batch and n_tokens <= self.settings.max_batch_tokens
            if fits and job.batch_key == batch[0].batch_key:
                batch.append(job)
        self._jobs = [job for job in self._jobs if job not in batch]
        return batch

    async def _run(self, jobs: Sequence[_Job]) -> None:
        """Answer a batch. If the batch fails, run each job alone, and report errors only for jobs that fail again."""
        requests = [replace(job.request, cancelled=job.cancelled) for job in jobs]
        batch_size = max(len(jobs), GenerationSettings.batch_size)  # methods that vote run several prompts per job
        self.metrics.batches.labels(self.name).observe(len(jobs))
        try:
            async with self.running(len(jobs)):
                lm = self._model_for(jobs[0].salt)
                settings = replace(jobs[0].settings, batch_size=batch_size)
                answers = await bridge.in_thread(partial(lm.answer, requests, settings))
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    if not job.cancelled.is_set():
                        await self._run([job])
            elif not jobs[0].future.done():
                jobs[0].future.set_exception(error)
        else:
            for job, answer in zip(jobs, answers, strict=True):
                if not job.future.done():
                    job.future.set_result(answer)
