"""An engine for models that run in this process or elsewhere, and the base class of these models."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TypeVar

from ragbias.boundaries import Boundaries
from ragbias.frameworks import asyncio_bridge as bridge
from ragbias.frameworks.tool_use import answer_format, supports_tools
from ragbias.generation import Generation, GenerationSettings, Request
from ragbias.generation.arguments import SAMPLING
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.serving import prompts
from ragbias.serving.answers import ChatFormatter, CompletionFormatter, Formatter, report_summary
from ragbias.serving.errors import ApiError, bad_request, translate_errors, unknown_model
from ragbias.serving.schemas import ChatRequest, Json, RequestBody, TokenizeRequest
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ServerSettings

STARTED = int(time.time())
PREPARED_AT_ONCE = 4  # maximum number of requests that are tokenised and ranked at the same time
T = TypeVar("T")


class ServedModel(ABC):
    """A model under the name that clients use. Call all methods from one event loop.

    This class queues request bodies, converts them to requests, and counts answers. Subclasses implement ``answer`` and
    ``pieces``, may extend ``prepare``, and enter ``running`` while they compute.
    """

    def __init__(self, lm: DebiasedLM, name: str, settings: ServerSettings, metrics: Metrics) -> None:
        self.lm = lm
        self.name = name
        self.settings = settings
        self.metrics = metrics
        self._streams = asyncio.Semaphore(settings.max_streams)
        self._preparing = asyncio.Semaphore(PREPARED_AT_ONCE)
        self._queued = self._running = 0
        metrics.waiting.labels(name).set_function(lambda: self._waiting)
        metrics.running.labels(name).set_function(lambda: self._running)

    @abstractmethod
    async def answer(self, request: Request, settings: GenerationSettings, salt: str = "") -> Generation:
        """Return the complete answer. Cancellation stops the computation at the next token."""

    @abstractmethod
    def pieces(
        self, request: Request, settings: GenerationSettings, salt: str = ""
    ) -> AsyncGenerator[str | Generation, None]:
        """Yield pieces of text, then the complete answer. Closing the generator stops the computation."""

    def prepare(self, text: str, boundaries: Boundaries, method: Method, cancelled: threading.Event) -> Request:
        """Prepare a request in a worker thread, see ``DebiasedLM.prepare``."""
        return self.lm.prepare(text, boundaries=boundaries, method=method, cancelled=cancelled)

    @asynccontextmanager
    async def running(self, count: int = 1, streamed: bool = False) -> AsyncIterator[None]:
        """Count requests as running during the block. A stream first waits while ``max_streams`` other streams run."""
        async with self._streams if streamed else nullcontext():
            self._running += count
            try:
                yield
            finally:
                self._running -= count

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
                yield await self.run_in_thread(lambda cancelled: self._convert(body, cancelled))

    @asynccontextmanager
    async def queue_slot(self) -> AsyncIterator[None]:
        """Occupy a place in the queue during the block. Raise a 429 if the queue is full."""
        if self._waiting >= self.settings.max_waiting:
            message = f"{self._waiting} requests are waiting; try again later"
            raise ApiError(429, message, None, "queue_full", retry_after=1)
        self._queued += 1
        try:
            yield
        finally:
            self._queued -= 1

    @property
    def _waiting(self) -> int:
        return max(0, self._queued - self._running)  # clients of running requests may have left the queue

    async def run_in_thread(self, work: Callable[[threading.Event], T]) -> T:
        """Run ``work`` in a thread and return the result.

        If the client disconnects, the event that ``work`` receives is set. The request keeps its place in the queue
        until the thread ends.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def work_and_end(cancelled: threading.Event) -> T:
            try:
                return work(cancelled)
            finally:
                with suppress(RuntimeError):  # raised if the loop is closed
                    loop.call_soon_threadsafe(ended.set)

        async with self._preparing:
            try:
                return await bridge.in_thread(work_and_end)
            except asyncio.CancelledError:
                await ended.wait()
                raise

    def record_answer(self, generation: Generation) -> Generation:
        """Add an answer to the metrics, and return it."""
        usage, report, metrics = generation.usage, generation.report, self.metrics
        metrics.answers.labels(self.name, report.method_ran).inc()
        if report.method_ran != report.method_requested:
            metrics.plain.labels(self.name, report.method_requested).inc()
        metrics.prompt_tokens.labels(self.name).inc(usage.prompt_tokens)
        metrics.completion_tokens.labels(self.name).inc(usage.completion_tokens)
        metrics.cached_tokens.labels(self.name).inc(usage.cached_tokens)
        return generation

    def _convert(self, body: RequestBody, cancelled: threading.Event) -> tuple[Request, Formatter, GenerationSettings]:
        method = prompts.client_method(body.options.method, self.lm.method, self.lm.name)
        settings = self._generation_settings(body)
        formatter: Formatter
        if isinstance(body, ChatRequest):
            form = answer_format(self.lm, body.tools or (), body.tool_choice, body.response_format)
            form = replace(form, parallel=body.parallel_tool_calls is not False)
            settings = replace(settings, keep_special=form.keep_special)
            formatter = ChatFormatter(self.name, form, body.options.raw)
            chat_text = prompts.chat_renderer(self.lm, body)
            messages = prompts.template_messages(body)
            documents = prompts.documents_of(body, self.settings.max_documents)
            text, boundaries = prompts.render_chat(chat_text, messages, documents, form, self.settings)
        else:
            formatter = CompletionFormatter(self.name)
            text = body.prompt
            prompts.check_characters(text, self.lm, "prompt")
            documents = prompts.documents_of(body, self.settings.max_documents)
            found = prompts.find_documents(text, documents, self.settings)
            if found is None:
                raise prompts.missing_documents("prompt", text, documents or ())
            boundaries = found
        request = self.prepare(text, boundaries, method, cancelled)
        prompts.check_documents_found(request, body.options.on_missing or self.settings.on_missing)
        formatter.fingerprint = report_summary(request.report)
        return request, formatter, settings

    def _generation_settings(self, body: RequestBody) -> GenerationSettings:
        name, max_tokens = "max_tokens", body.max_tokens
        if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
            name, max_tokens = "max_completion_tokens", body.max_completion_tokens
        limit = self.settings.max_new_tokens
        if max_tokens is not None and limit is not None and max_tokens > limit:
            raise bad_request(name, f"{name}={max_tokens}; expected at most {limit}, the limit of this server")
        arguments = {argument: getattr(body, argument) for argument in (*SAMPLING, "stop")}
        arguments["max_new_tokens"] = max_tokens
        arguments["logprobs"] = body.logprobs is not None and body.logprobs is not False  # 0 also requests them
        return GenerationSettings.from_arguments(arguments)


class ModelEngine:
    """An engine for several models, see ``app.Engine``.

    Args:
        load_models: loads the models.
        is_healthy: whether loaded models can answer now.
    """

    def __init__(
        self, load_models: Callable[[], Iterable[ServedModel]], is_healthy: Callable[[], bool] = lambda: True
    ) -> None:
        self._load_models, self._is_healthy = load_models, is_healthy
        self._served: dict[str, ServedModel] = {}

    def load(self) -> None:
        """Load the models."""
        self._served = {served.name: served for served in self._load_models()}

    @property
    def is_ready(self) -> bool:
        return bool(self._served) and self._is_healthy()

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
