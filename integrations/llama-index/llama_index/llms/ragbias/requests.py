"""Answer prepared calls, complete or in chunks, sync or async, and build LlamaIndex's responses."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LogProb,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.llms.ragbias import messages
from llama_index.llms.ragbias.listener import reports

from ragbias import Generation
from ragbias.frameworks import AnswerFormat, GrowingAnswer, LanguageModel, Owner
from ragbias.frameworks import asyncio_bridge as bridge
from ragbias.generation import GenerationSettings, Request, Stream


@dataclass(frozen=True)
class Reply:
    """The text of an answer so far, and its last piece.

    Only complete answers have a ``generation``, ``logprobs`` in OpenAI's format, tool ``calls``, and ``errors`` of
    malformed calls.
    """

    text: str
    delta: str | None = None
    generation: Generation | None = None
    logprobs: dict[str, Any] | None = None
    calls: tuple[ToolCallBlock, ...] = ()
    errors: tuple[str, ...] = ()

    def completion(self) -> CompletionResponse:
        """Return the response of a completion."""
        return CompletionResponse(text=self.text, delta=self.delta, **self._fields())

    def chat(self) -> ChatResponse:
        """Return the response of a chat.

        The message has no report, because memories would add it to later prompts. Tool calls are in blocks, and in
        ``additional_kwargs`` for LlamaIndex's streaming programs.
        """
        message = ChatMessage(role=MessageRole.ASSISTANT, content=self.text)
        fields = self._fields()
        if self.calls:
            text = [TextBlock(text=self.text)] if self.text else []
            calls = {"tool_calls": [messages.as_dict(block) for block in self.calls]}
            message = ChatMessage(role=MessageRole.ASSISTANT, blocks=[*text, *self.calls], additional_kwargs=calls)
        if self.errors:
            fields["additional_kwargs"]["invalid_tool_calls"] = list(self.errors)
        return ChatResponse(message=message, delta=self.delta, **fields)

    def _fields(self) -> dict[str, Any]:
        if self.generation is None:
            return {"additional_kwargs": {}, "raw": None}
        usage, report = self.generation.usage.as_dict(), self.generation.report.as_dict()
        raw: dict[str, Any] = {"usage": usage, "finish_reason": self.generation.finish_reason, "ragbias": report}
        tokens = None
        if self.logprobs is not None:
            raw["logprobs"] = self.logprobs
            names = ("token", "logprob", "bytes")
            tokens = [[LogProb(**{name: each[name] for name in names})] for each in self.logprobs["content"]]
        return {"additional_kwargs": {**usage, "ragbias": report}, "raw": raw, "logprobs": tokens}


Response = TypeVar("Response")
Respond = Callable[[Reply], Response]


@dataclass(frozen=True)
class PreparedCall:
    """A prepared call of the LLM: the request, how to generate, and how to read the answer."""

    owner: Owner
    lm: LanguageModel
    request: Request
    settings: GenerationSettings
    form: AnswerFormat = field(default_factory=AnswerFormat)
    parallel: bool = True  # whether the answer may have more than one call of a tool

    def answer(self, respond: Respond[Response]) -> Response:
        """Return the whole answer."""
        return respond(self._whole(self.lm.answer([self.request], self.settings)[0]))

    def stream(self, respond: Respond[Response]) -> Generator[Response, None, None]:
        """Open a stream and return a generator over it. Errors of the request are raised here, not in the generator."""
        return self._chunks(self._open(), respond)

    def _open(self) -> Stream:
        """Open a stream. Store its report at once, because its caller may close it before the end."""
        stream = self.lm.stream_answer(self.request, self.settings)
        reports.store(self.owner, stream.report.as_dict())
        return stream

    def _chunks(self, stream: Stream, respond: Respond[Response]) -> Generator[Response, None, None]:
        growing = GrowingAnswer(self.form)
        with closing(stream):
            for piece in stream:
                if delta := growing.add(piece):
                    yield respond(Reply(growing.shown, delta))
        yield respond(self._last(stream.generation, growing))

    async def _achunks(self, stream: Stream, respond: Respond[Response]) -> AsyncGenerator[Response, None]:
        growing = GrowingAnswer(self.form)
        async with aclosing(bridge.pieces(stream)) as pieces:
            async for piece in pieces:
                if delta := growing.add(piece):
                    yield respond(Reply(growing.shown, delta))
        yield respond(self._last(stream.generation, growing))

    def _whole(self, generation: Generation) -> Reply:
        """Return the complete answer, and store its report."""
        reports.store(self.owner, generation.report.as_dict())
        text, calls, errors = messages.read(self.form, generation.text, self.parallel)
        return Reply(text, None, generation, self.form.logprobs(self.lm, generation), calls, errors)

    def _last(self, generation: Generation, growing: GrowingAnswer) -> Reply:
        answer = self._whole(generation)
        return replace(answer, delta=growing.rest(answer.text))


async def aanswer(prepare: Callable[[], PreparedCall], respond: Respond[Response]) -> Response:
    """Return the whole answer. The prompt is also prepared outside the event loop."""

    def work(cancelled: threading.Event) -> tuple[PreparedCall, Generation]:
        prepared = prepare()
        return prepared, prepared.lm.answer([prepared.request], prepared.settings, cancelled)[0]

    prepared, generation = await bridge.run(work)
    return respond(prepared._whole(generation))


async def astream(prepare: Callable[[], PreparedCall], respond: Respond[Response]) -> AsyncGenerator[Response, None]:
    """Return a generator over an open stream. The prompt is also prepared outside the event loop."""
    prepared = await bridge.run(lambda _: prepare())
    return prepared._achunks(prepared._open(), respond)
