"""An engine with models in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict

from ragbias.adapters.tool_use import AnswerFormat, knows_tools
from ragbias.boundaries import Boundaries, locate
from ragbias.cache import DocumentCache
from ragbias.cache.document_cache import MEMORY
from ragbias.errors import RagBiasError
from ragbias.generation.report import Generation
from ragbias.generation.request import Request as Prepared
from ragbias.lm import DebiasedLM
from ragbias.methods import DEFAULT_METHOD
from ragbias.serving import conversation
from ragbias.serving.answers import Answer, ChatAnswer, CompletionAnswer
from ragbias.serving.documents import (
    check_found,
    client_method,
    given_documents,
    in_prompt,
    nowhere_to_put,
    prompt_with,
)
from ragbias.serving.errors import ApiError, from_library, refused, unknown_model
from ragbias.serving.scheduler import Scheduler
from ragbias.serving.schemas import ChatRequest, CompletionRequest, Json, Request, TokenizeRequest
from ragbias.serving.settings import ServerSettings
from ragbias.serving.telemetry import Metrics

PASSED_ON = ("temperature", "top_p", "top_k", "repetition_penalty", "seed", "stop")  # same name in the library


class ModelSettings(BaseModel):
    """A model to serve.

    Attributes:
        name: name for clients; default: ``model``.
        device: such as ``"cuda"``; default: a GPU if there is one.
        cache: folder for cached documents, which several processes may share.
        cache_memory: memory for cached documents, such as ``"4GB"``; default with a folder: 2 GB, else none.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    name: str | None = None
    method: str = DEFAULT_METHOD
    dtype: str = "auto"
    device: str | None = None
    strip_numbering: bool = False
    cache: str | None = None
    cache_memory: str | None = None

    @property
    def served_name(self) -> str:
        """The name for clients."""
        return self.name or self.model

    def document_cache(self) -> DocumentCache | None:
        """The cache; None for neither folder nor memory.

        Raises:
            ArgumentError: see ``DocumentCache``.
        """
        if self.cache is None and self.cache_memory is None:
            return None
        return DocumentCache(memory=self.cache_memory or MEMORY, folder=self.cache)

    def load(self) -> dict[str, DebiasedLM]:
        """The loaded model by its name.

        Raises:
            ModelFileError: the model cannot be loaded.
            UnknownMethodError, MethodError: see ``ragbias.methods.get``.
        """
        lm = DebiasedLM.from_pretrained(
            self.model,
            self.method,
            dtype=self.dtype,
            device=self.device or "auto",
            strip_numbering=self.strip_numbering,
            cache=self.document_cache(),
        )
        return {self.served_name: lm}


class ServedModel:
    """A model and the name that clients use."""

    def __init__(self, name: str, lm: DebiasedLM, settings: ServerSettings, metrics: Metrics) -> None:
        self.name, self.lm, self._settings, self._metrics = name, lm, settings, metrics
        self.scheduler = Scheduler(lm, name, settings, metrics)
        self._created = int(time.time())

    def card(self) -> Json:
        """The model in the format of ``/v1/models``; ``max_model_len`` is its window, as in vLLM."""
        chat = bool(self.lm.tokenizer.chat_template)
        own = {"method": self.lm.method.name, "chat": chat, "tools": chat and knows_tools(self.lm)}
        head = {"id": self.name, "object": "model", "created": self._created, "owned_by": "ragbias"}
        return {**head, "max_model_len": self.lm.window, "ragbias": own}

    def prepare(self, body: Request, cancelled: threading.Event) -> tuple[Prepared, Answer, dict[str, Any]]:
        """The prepared request, the format of its answer, and the arguments of ``DebiasedLM.batch``."""
        method = client_method(body.options.method, self.lm.method, self.lm.name)
        arguments = self._arguments(body)
        answer: Answer
        if isinstance(body, ChatRequest):
            form = conversation.answer_format(self.lm, body)
            arguments |= form.settings
            answer = ChatAnswer(self.name, form, body.options.raw, body.parallel_tool_calls is not False)
            text, found = self._chat_prompt(body, form)
        else:
            answer = CompletionAnswer(self.name)
            text, found = body.prompt, self._in_completion(body)
        request = self.lm.prepare(text, None, found, method, cancelled)
        check_found(request, body.options.on_missing or self._settings.on_missing)
        return request, answer, arguments

    def counted(self, generation: Generation) -> Generation:
        """Count an answer in the metrics and return it."""
        usage, report, metrics = generation.usage, generation.report, self._metrics
        metrics.answers.labels(self.name, report.method_ran).inc()
        if report.method_ran != report.method_requested:
            metrics.plain.labels(self.name, report.method_requested).inc()
        metrics.prompt_tokens.labels(self.name).inc(usage.prompt_tokens)
        metrics.completion_tokens.labels(self.name).inc(usage.completion_tokens)
        metrics.cached_tokens.labels(self.name).inc(usage.prompt_tokens_details.cached_tokens)
        return generation

    def _chat_prompt(self, body: ChatRequest, form: AnswerFormat) -> tuple[str, Boundaries]:
        messages, given = conversation.template_messages(body), conversation.variables(body)

        def render(messages: list[Json], more: dict[str, Any]) -> str:
            return conversation.templated(self.lm, messages, form.tools, {**given, **more}) + form.beginning

        if documents := given_documents(body, self._settings.max_documents):
            return prompt_with(documents, messages, render)
        text = render(messages, {})
        return text, self._located(text, documents)

    def _in_completion(self, body: CompletionRequest) -> Boundaries:
        documents = given_documents(body, self._settings.max_documents)
        if not documents:
            return self._located(body.prompt, documents)
        if (found := in_prompt(body.prompt, documents)) is None:
            raise nowhere_to_put("prompt")
        return found

    def _located(self, text: str, none_or_empty: list[Any] | None) -> Boundaries:
        return locate(text, documents=none_or_empty, segmenter=self._settings.separator or None)

    def _arguments(self, body: Request) -> dict[str, Any]:
        name, most = "max_tokens", body.max_tokens
        if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
            name, most = "max_completion_tokens", body.max_completion_tokens
        limit = self._settings.max_new_tokens
        if most is not None and limit is not None and most > limit:
            raise refused(name, f"{name}={most}; expected at most {limit}, the limit of this server")
        found = {each: getattr(body, each) for each in PASSED_ON} | {"max_new_tokens": most}
        if body.logprobs is not None and body.logprobs is not False:  # 0 asks a completion for its own tokens
            found["logprobs"] = True
        return {key: value for key, value in found.items() if value is not None}


@contextmanager
def errors_translated(body: Request) -> Iterator[None]:
    """Turn errors of the library into ``ApiError``."""
    try:
        yield
    except RagBiasError as error:
        raise from_library(error, "messages" if isinstance(body, ChatRequest) else "prompt") from error


class LocalEngine:
    """An engine with models in this process.

    Args:
        load: gives the models by name; called once, by ``load``.
    """

    def __init__(
        self, load: Callable[[], Mapping[str, DebiasedLM]], settings: ServerSettings, metrics: Metrics
    ) -> None:
        self._load, self._settings, self._metrics = load, settings, metrics
        self._served: dict[str, ServedModel] = {}

    def load(self) -> None:
        """Load the models."""
        self._served = {name: ServedModel(name, lm, self._settings, self._metrics) for name, lm in self._load().items()}

    @property
    def is_ready(self) -> bool:
        return bool(self._served)

    async def models(self) -> list[Json]:
        return [each.card() for each in self._served.values()]

    async def answer(self, body: Request) -> Json:
        served = self._model(body.model)
        async with served.scheduler.admitted():
            with errors_translated(body):
                request, answer, arguments = await served.scheduler.prepared(lambda event: served.prepare(body, event))
                generation = await served.scheduler.answer(request, arguments)
            return answer.whole(served.counted(generation), served.lm.tokenizer)

    async def stream(self, body: Request) -> AsyncGenerator[Json, None]:
        served = self._model(body.model)
        async with served.scheduler.admitted():
            with errors_translated(body):
                request, answer, arguments = await served.scheduler.prepared(lambda event: served.prepare(body, event))
                yield request.report.as_dict()
                if (first := answer.first()) is not None:
                    yield first
                async with aclosing(served.scheduler.pieces(request, arguments)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Generation):
                            for chunk in answer.last(served.counted(piece), served.lm.tokenizer):
                                yield chunk
                            if body.stream_options and body.stream_options.include_usage:
                                yield answer.usage_chunk(piece.usage)
                        elif (chunk_of_piece := answer.piece(piece)) is not None:
                            yield chunk_of_piece

    async def tokens(self, body: TokenizeRequest) -> Json:
        served = self._model(body.model)
        ids = await served.scheduler.prepared(
            lambda _: served.lm.tokenizer(body.prompt, add_special_tokens=body.add_special_tokens)["input_ids"]
        )
        return {"count": len(ids), "max_model_len": served.lm.window, "tokens": list(ids)}

    def _model(self, name: str) -> ServedModel:
        if not self._served:
            raise ApiError(503, "the model is loading", None, "not_ready", retry_after=5)
        if name not in self._served:
            raise unknown_model(name, self._served)
        return self._served[name]
