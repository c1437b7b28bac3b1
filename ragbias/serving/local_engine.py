"""An engine that runs models in this process. It batches complete answers, and runs streams concurrently."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from ragbias.boundaries import Boundaries
from ragbias.frameworks import asyncio_bridge as bridge
from ragbias.frameworks import chat_documents
from ragbias.frameworks.tool_use import AnswerFormat, answer_format, supports_tools
from ragbias.generation import Generation, GenerationSettings, Request
from ragbias.generation.arguments import SAMPLING
from ragbias.lm import DebiasedLM
from ragbias.serving import prompts
from ragbias.serving.answers import ChatFormatter, CompletionFormatter, Formatter, report_summary
from ragbias.serving.errors import ApiError, bad_request, translate_errors, unknown_model
from ragbias.serving.schemas import ChatRequest, CompletionRequest, Json, RequestBody, TokenizeRequest
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ServerSettings

STARTED = int(time.time())
PREPARED_AT_ONCE = 4  # maximum number of requests that are tokenised and ranked at the same time
T = TypeVar("T")


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


class Scheduler:
    """Answer prepared requests with one model. Call all methods from one event loop.

    One padded batch runs at a time. It contains the oldest request, and later requests with the same method, settings
    and salt until the token budget is used. Up to ``max_streams`` streams run in parallel to it.
    """

    def __init__(self, lm: DebiasedLM, name: str, settings: ServerSettings, metrics: Metrics) -> None:
        self.lm, self.name, self._settings, self._metrics = lm, name, settings, metrics
        self._jobs: list[_Job] = []
        self._worker: asyncio.Task[None] | None = None
        self._streams = asyncio.Semaphore(settings.max_streams)
        self._preparing = asyncio.Semaphore(PREPARED_AT_ONCE)
        self._waiting = self._running = 0

    @asynccontextmanager
    async def queue_slot(self) -> AsyncIterator[None]:
        """Occupy a place in the queue during the block. Raise a 429 if the queue is full."""
        if self._waiting >= self._settings.max_waiting:
            message = f"{self._waiting} requests are waiting; try again later"
            raise ApiError(429, message, None, "queue_full", retry_after=1)
        self._count(waiting=1)
        try:
            yield
        finally:
            self._count(waiting=-1)

    async def run_in_thread(self, work: Callable[[threading.Event], T]) -> T:
        """Run ``work`` in a thread and return the result.

        If the client disconnects, the event that ``work`` receives is set. The request keeps its place in the queue
        until the thread ends.
        """
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def work_and_end(cancelled: threading.Event) -> T:
            try:
                return work(cancelled)
            finally:
                with suppress(RuntimeError):  # raised if the loop is closed
                    loop.call_soon_threadsafe(ended.set)

        async with self._preparing:
            try:
                return await bridge.run(work_and_end)
            except asyncio.CancelledError:
                await ended.wait()
                raise

    async def answer(self, request: Request, settings: GenerationSettings, salt: str = "") -> Generation:
        """Return the complete answer. Cancellation stops the computation at the next token."""
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
        """Yield pieces of text, then the complete answer. Closing the generator stops the computation."""
        async with self._streams:
            self._count(running=1)
            try:
                stream = self._model_for(salt).stream_answer(request, settings)
                async with aclosing(bridge.pieces(stream)) as pieces:
                    async for piece in pieces:
                        yield piece
                yield stream.generation
            finally:
                self._count(running=-1)

    def _model_for(self, salt: str) -> DebiasedLM:
        """Return the model with a cache that contains only the documents of this salt."""
        if self.lm.cache is None:
            return self.lm
        lm = copy.copy(self.lm)
        lm.cache = self.lm.cache.with_salt(salt)
        return lm

    def _count(self, waiting: int = 0, running: int = 0) -> None:
        self._waiting += waiting - running
        self._running += running
        self._metrics.waiting.labels(self.name).set(self._waiting)
        self._metrics.running.labels(self.name).set(self._running)

    async def _work(self) -> None:
        while self._jobs:
            if len(self._jobs) < self._settings.max_batch and self._settings.batch_wait_ms:
                await asyncio.sleep(self._settings.batch_wait_ms / 1000)
            if batch := self._next_batch():
                await self._run(batch)

    def _next_batch(self) -> list[_Job]:
        """Remove and return the oldest job and all jobs that can share its batch."""
        batch = self._jobs[:1]
        for job in self._jobs[1:]:
            n_tokens = max(member.tokens for member in (*batch, job)) * (len(batch) + 1)
            fits = len(batch) < self._settings.max_batch and n_tokens <= self._settings.max_batch_tokens
            if fits and job.batch_key == batch[0].batch_key:
                batch.append(job)
        self._jobs = [job for job in self._jobs if job not in batch]
        return batch

    async def _run(self, jobs: Sequence[_Job]) -> None:
        """Answer a batch. If the batch fails, run each job alone, and report errors only for jobs that fail again."""
        requests = [replace(job.request, cancelled=job.cancelled) for job in jobs]
        batch_size = max(len(jobs), GenerationSettings.batch_size)  # methods that vote run several prompts per job
        self._metrics.batches.labels(self.name).observe(len(jobs))
        self._count(running=len(jobs))
        try:
            lm, settings = self._model_for(jobs[0].salt), replace(jobs[0].settings, batch_size=batch_size)
            answers = await bridge.run(partial(lm.answer, requests, settings))
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


class ServedModel(Scheduler):
    """A model under the name that clients use. It converts request bodies to requests, and counts answers."""

    def card(self) -> Json:
        """Describe the model in the format of ``/v1/models``, with vLLM's field for the context window."""
        chat = bool(self.lm.tokenizer.chat_template)
        return {
            "id": self.name,
            "object": "model",
            "created": STARTED,
            "owned_by": "ragbias",
            "max_model_len": self.lm.window,
            "ragbias": {"method": self.lm.method.name, "chat": chat, "tools": chat and supports_tools(self.lm)},
        }

    @asynccontextmanager
    async def prepared_request(self, body: RequestBody) -> AsyncIterator[tuple[Request, Formatter, GenerationSettings]]:
        """Queue and prepare a request. Yield the request, a formatter for the answer, and the settings."""
        async with self.queue_slot():
            with translate_errors("messages" if isinstance(body, ChatRequest) else "prompt"):
                yield await self.run_in_thread(lambda cancelled: self._prepare(body, cancelled))

    def _prepare(self, body: RequestBody, cancelled: threading.Event) -> tuple[Request, Formatter, GenerationSettings]:
        method = prompts.client_method(body.options.method, self.lm.method, self.lm.name)
        settings = self._generation_settings(body)
        formatter: Formatter
        if isinstance(body, ChatRequest):
            form = answer_format(self.lm, body.tools or (), body.tool_choice, body.response_format)
            form = replace(form, parallel=body.parallel_tool_calls is not False)
            settings = replace(settings, keep_special=form.keep_special)
            formatter = ChatFormatter(self.name, form, body.options.raw)
            text, boundaries = self._chat_prompt(body, form)
        else:
            formatter = CompletionFormatter(self.name)
            text, boundaries = self._completion_prompt(body)
        request = self.lm.prepare(text, boundaries=boundaries, method=method, cancelled=cancelled)
        prompts.check_documents_found(request, body.options.on_missing or self._settings.on_missing)
        formatter.fingerprint = report_summary(request.report)
        return request, formatter, settings

    def record_answer(self, generation: Generation) -> Generation:
        """Add an answer to the metrics, and return it."""
        usage, report, metrics = generation.usage, generation.report, self._metrics
        metrics.answers.labels(self.name, report.method_ran).inc()
        if report.method_ran != report.method_requested:
            metrics.plain.labels(self.name, report.method_requested).inc()
        metrics.prompt_tokens.labels(self.name).inc(usage.prompt_tokens)
        metrics.completion_tokens.labels(self.name).inc(usage.completion_tokens)
        metrics.cached_tokens.labels(self.name).inc(usage.cached_tokens)
        return generation

    def _chat_prompt(self, body: ChatRequest, form: AnswerFormat) -> tuple[str, Boundaries]:
        chat_text, messages = prompts.chat_renderer(self.lm, body), prompts.template_messages(body)
        documents = prompts.documents_of(body, self._settings.max_documents)
        return prompts.render_chat(chat_text, messages, documents, form, self._settings)

    def _completion_prompt(self, body: CompletionRequest) -> tuple[str, Boundaries]:
        prompts.check_characters(body.prompt, self.lm, "prompt")
        documents = prompts.documents_of(body, self._settings.max_documents)
        if not documents:
            return body.prompt, prompts.locate_documents(body.prompt, self._settings, documents)
        if (boundaries := chat_documents.locate_all(body.prompt, documents)) is None:
            raise prompts.missing_documents("prompt", body.prompt, documents)
        return body.prompt, boundaries

    def _generation_settings(self, body: RequestBody) -> GenerationSettings:
        name, max_tokens = "max_tokens", body.max_tokens
        if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
            name, max_tokens = "max_completion_tokens", body.max_completion_tokens
        limit = self._settings.max_new_tokens
        if max_tokens is not None and limit is not None and max_tokens > limit:
            raise bad_request(name, f"{name}={max_tokens}; expected at most {limit}, the limit of this server")
        arguments = {name: getattr(body, name) for name in (*SAMPLING, "stop")} | {"max_new_tokens": max_tokens}
        arguments["logprobs"] = body.logprobs is not None and body.logprobs is not False  # 0 also requests them
        return GenerationSettings.from_arguments(arguments)


class LocalEngine:
    """An engine for several models. Its first argument is a function that returns the models by name."""

    def __init__(
        self, load: Callable[[], Mapping[str, DebiasedLM]], settings: ServerSettings, metrics: Metrics
    ) -> None:
        self._load, self._settings, self._metrics = load, settings, metrics
        self._served: dict[str, ServedModel] = {}

    def load(self) -> None:
        """Load the models."""
        self._served = {name: ServedModel(lm, name, self._settings, self._metrics) for name, lm in self._load().items()}

    @property
    def is_ready(self) -> bool:
        return bool(self._served)

    async def models(self) -> list[Json]:
        return [served.card() for served in self._served.values()]

    async def answer(self, body: RequestBody, salt: str = "") -> Json:
        """Return the response body; see ``app.Engine.answer``."""
        served = self._model(body.model)
        async with served.prepared_request(body) as (request, formatter, settings):
            generation = await served.answer(request, settings, salt)
            return formatter.whole(served.record_answer(generation), served.lm.tokenizer)

    async def stream(self, body: RequestBody, salt: str = "") -> AsyncGenerator[Json, None]:
        """Yield the report, then the chunks; see ``app.Engine.stream``."""
        served = self._model(body.model)
        async with served.prepared_request(body) as (request, formatter, settings):
            yield request.report.as_dict()
            if (first := formatter.first()) is not None:
                yield first
            async with aclosing(served.pieces(request, settings, salt)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Generation):
                        for chunk in formatter.last(served.record_answer(piece), served.lm.tokenizer):
                            yield chunk
                        if body.stream_options and body.stream_options.include_usage:
                            yield formatter.usage_chunk(piece.usage)
                    elif (chunk_of_piece := formatter.piece(piece)) is not None:
                        yield chunk_of_piece

    async def tokens(self, body: TokenizeRequest) -> Json:
        served = self._model(body.model)
        prompts.check_characters(body.prompt, served.lm, "prompt")
        options = {"add_special_tokens": body.add_special_tokens}
        async with served.queue_slot():
            ids = await served.run_in_thread(lambda _: served.lm.tokenizer(body.prompt, **options)["input_ids"])
        return {"count": len(ids), "max_model_len": served.lm.window, "tokens": list(ids)}

    def _model(self, name: str) -> ServedModel:
        if not self._served:
            raise ApiError(503, "the model is loading", None, "not_ready", retry_after=5)
        if name not in self._served:
            raise unknown_model(name, self._served)
        return self._served[name]
