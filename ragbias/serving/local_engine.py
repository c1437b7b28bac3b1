"""The engine with models of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ragbias import methods
from ragbias.adapters.tool_use import AnswerFormat, knows_tools
from ragbias.boundaries import locate
from ragbias.errors import RagBiasError
from ragbias.generation.report import Generation
from ragbias.generation.request import Request as Prepared
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.serving import conversation
from ragbias.serving.answers import Answer, ChatAnswer, CompletionAnswer
from ragbias.serving.documents import Messages, check_found, given_documents, in_prompt, no_message_for, prompt_with
from ragbias.serving.errors import METHOD, ApiError, of_library, refused, unknown_model
from ragbias.serving.metrics import Metrics
from ragbias.serving.scheduler import Scheduler
from ragbias.serving.schemas import ChatRequest, CompletionRequest, Json, Request, TokenizeRequest, check_supported
from ragbias.serving.settings import ServerSettings

PASSED_ON = ("temperature", "top_p", "top_k", "repetition_penalty", "seed", "stop")  # under the same name
T = TypeVar("T")


class ServedModel:
    """A model under the name that clients know it by."""

    def __init__(self, name: str, lm: DebiasedLM, settings: ServerSettings, metrics: Metrics) -> None:
        self.name, self.lm, self._settings, self._metrics = name, lm, settings, metrics
        self.scheduler = Scheduler(lm, name, settings, metrics)
        self._created = int(time.time())

    def card(self) -> Json:
        """The model in the shape of ``/v1/models``; ``max_model_len`` is its window, as vLLM has it."""
        chat = bool(self.lm.tokenizer.chat_template)
        own = {"method": self.lm.method.name, "chat": chat, "tools": chat and knows_tools(self.lm)}
        head = {"id": self.name, "object": "model", "created": self._created, "owned_by": "ragbias"}
        return {**head, "max_model_len": self.lm.window, "ragbias": own}

    def method(self, body: Request) -> Method:
        """The method that a request asks for.

        Raises:
            ApiError: there is no such method, or it would read a file of this machine.
        """
        typed = body.options.method
        if typed is None:
            return self.lm.method
        if "profile=" in methods.parse.without_blanks(typed):
            raise refused(METHOD, f"{METHOD}: a profile is a file of the server; start the server with this method")
        return methods.get(typed, self.lm.name)

    def ready(self, body: Request, cancelled: threading.Event) -> tuple[Prepared, Answer, dict[str, Any]]:
        """The request made ready, the shape of its answer, and the arguments of ``DebiasedLM.batch``."""
        check_supported(body)
        method, arguments = self.method(body), self._arguments(body)
        form = AnswerFormat()
        answer: Answer
        if isinstance(body, ChatRequest):
            messages = conversation.asking_for_json(conversation.template_messages(body.messages), body)
            form = conversation.answer_format(self.lm, body)
            request = self._chat(body, messages, form, method, cancelled)
            answer = ChatAnswer(self.name, form, body.options.raw, body.parallel_tool_calls is not False)
        else:
            request = self._completion(body, method, cancelled)
            answer = CompletionAnswer(self.name)
        check_found(request, body.options.on_missing or self._settings.on_missing)
        return request, answer, {**arguments, **form.settings}

    def counted(self, generation: Generation) -> Generation:
        """The answer itself, once the metrics have counted it."""
        counts, report = generation.usage.as_dict(), generation.report
        self._metrics.answers.labels(self.name, report.method_ran).inc()
        if report.method_ran != report.method_requested:
            self._metrics.plain.labels(self.name, report.method_requested).inc()
        for metric, count in (
            (self._metrics.prompt_tokens, counts["prompt_tokens"]),
            (self._metrics.completion_tokens, counts["completion_tokens"]),
            (self._metrics.cached_tokens, counts["prompt_tokens_details"]["cached_tokens"]),
        ):
            metric.labels(self.name).inc(count)
        return generation

    def _chat(
        self,
        body: ChatRequest,
        messages: Messages,
        form: AnswerFormat,
        method: Method,
        cancelled: threading.Event,
    ) -> Prepared:
        given = conversation.variables(body)
        documents = given_documents(body, self._settings.max_documents)

        def render(messages: Messages, more: dict[str, Any]) -> str:
            return conversation.templated(self.lm, messages, form.tools, {**given, **more}) + form.beginning

        if documents:
            text, found = prompt_with(documents, messages, render)
            return self.lm.prepare(text, None, found, method, cancelled)
        return self._found(render(messages, {}), documents, method, cancelled)

    def _completion(self, body: CompletionRequest, method: Method, cancelled: threading.Event) -> Prepared:
        documents = given_documents(body, self._settings.max_documents)
        if not documents:
            return self._found(body.prompt, documents, method, cancelled)
        found = in_prompt(body.prompt, documents)
        if found is None:
            raise no_message_for("prompt")
        return self.lm.prepare(body.prompt, None, found, method, cancelled)

    def _found(self, text: str, documents: list[Any] | None, method: Method, cancelled: threading.Event) -> Prepared:
        """The request of a prompt that names no documents, or says that there are none."""
        found = locate(text, documents=documents, segmenter=self._settings.separator or None)
        return self.lm.prepare(text, None, found, method, cancelled)

    def _arguments(self, body: Request) -> dict[str, Any]:
        given = {name: getattr(body, name) for name in PASSED_ON}
        name, most = "max_tokens", body.max_tokens
        if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
            name, most = "max_completion_tokens", body.max_completion_tokens
        limit = self._settings.max_new_tokens
        if most is not None and limit is not None and most > limit:
            raise refused(name, f"{name}={most}; this server writes at most {limit} tokens")
        logprobs = body.logprobs is not None if isinstance(body, CompletionRequest) else bool(body.logprobs)
        found = {**given, "max_new_tokens": most, "logprobs": logprobs}
        return {key: value for key, value in found.items() if value is not None and value is not False}


@dataclass
class LocalAnswering:
    """A prepared stream; counts as waiting until it is closed."""

    served: ServedModel
    request: Prepared
    answer: Answer
    arguments: dict[str, Any]
    include_usage: bool
    held: AsyncExitStack
    report: Json = field(init=False)

    def __post_init__(self) -> None:
        self.report = self.request.report.as_dict()

    async def chunks(self) -> AsyncIterator[Json]:
        async with aclosing(self.served.scheduler.pieces(self.request, self.arguments)) as pieces:
            if (begin := self.answer.first()) is not None:
                yield begin
            with errors_translated(self.answer):
                async for piece in pieces:
                    if isinstance(piece, Generation):
                        for chunk in self.answer.last(self.served.counted(piece), self.served.lm.tokenizer):
                            yield chunk
                        if self.include_usage:
                            yield self.answer.usage_chunk(piece.usage)
                    elif (shown := self.answer.piece(piece)) is not None:
                        yield shown

    async def close(self) -> None:
        await self.held.aclose()


@contextmanager
def errors_translated(about: Answer | Request) -> Iterator[None]:
    """Within it, errors of the library are those of the API."""
    prompt = "prompt" if isinstance(about, (CompletionAnswer, CompletionRequest)) else "messages"
    try:
        yield
    except RagBiasError as error:
        raise of_library(error, prompt) from error


class LocalEngine:
    """Answers with models of this process.

    Args:
        load: gives the models by name; called once, by ``load``.
    """

    def __init__(
        self, load: Callable[[], Mapping[str, DebiasedLM]], settings: ServerSettings, metrics: Metrics
    ) -> None:
        self._load, self._settings, self._metrics = load, settings, metrics
        self._served: dict[str, ServedModel] = {}

    def load(self) -> None:
        """Load the models; its errors are those of the function given."""
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
                request, answer, arguments = await served.scheduler.prepared(lambda event: served.ready(body, event))
                generation = await served.scheduler.answer(request, arguments)
            return answer.whole(served.counted(generation), served.lm.tokenizer)

    async def stream(self, body: Request) -> LocalAnswering:
        served = self._model(body.model)
        async with AsyncExitStack() as held:
            await held.enter_async_context(served.scheduler.admitted())
            with errors_translated(body):
                request, answer, arguments = await served.scheduler.prepared(lambda event: served.ready(body, event))
            include_usage = bool(body.stream_options and body.stream_options.include_usage)
            return LocalAnswering(served, request, answer, arguments, include_usage, held.pop_all())

    async def tokens(self, body: TokenizeRequest) -> Json:
        served = self._model(body.model)
        ids = served.lm.tokenizer(body.prompt, add_special_tokens=body.add_special_tokens)["input_ids"]
        return {"count": len(ids), "max_model_len": served.lm.window, "tokens": list(ids)}

    def _model(self, name: str) -> ServedModel:
        if not self._served:
            raise ApiError(503, "the model is being loaded", None, "not_ready", retry_after=5)
        if name not in self._served:
            raise unknown_model(name, self._served)
        return self._served[name]
