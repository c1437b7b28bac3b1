"""Answer prepared calls, with or without streaming and asyncio, and build LlamaIndex's responses."""

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
    """A complete answer, or the part of an answer that was streamed so far."""

    text: str
    delta: str | None = None  # the piece that was streamed last
    # unset until the answer is complete
    generation: Generation | None = None
    logprobs: dict[str, Any] | None = None  # in OpenAI's format
    calls: tuple[ToolCallBlock, ...] = ()
    errors: tuple[str, ...] = ()  # of malformed tool calls

    def completion(self) -> CompletionResponse:
        """Return the response to a completion request."""
        return CompletionResponse(text=self.text, delta=self.delta, **self._fields())

    def chat(self) -> ChatResponse:
        """Return the response to a chat request.

        The report is not in the message, because LlamaIndex's memories would add it to later prompts. Tool calls are in
        blocks and, for LlamaIndex's streaming programs, in ``additional_kwargs``.
        """
        message = ChatMessage(role=MessageRole.ASSISTANT, content=self.text)
        fields = self._fields()
        if self.calls:
            text = [TextBlock(text=self.text)] if self.text else []
            calls = {"tool_calls": [messages.call_to_dict(block) for block in self.calls]}
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
            tokens = [[LogProb(**{name: token[name] for name in names})] for token in self.logprobs["content"]]
        return {"additional_kwargs": {**usage, "ragbias": report}, "raw": raw, "logprobs": tokens}


Response = TypeVar("Response")
Respond = Callable[[Reply], Response]


@dataclass(frozen=True)
class PreparedCall:
    """A prepared call of the LLM: the request, the settings for generation, and the format of the answer."""

    owner: Owner
    lm: LanguageModel
    request: Request
    settings: GenerationSettings
    form: AnswerFormat = field(default_factory=AnswerFormat)
    parallel: bool = True  # whether the answer may have several tool calls

    def answer(self, respond: Respond[Response]) -> Response:
        """Return the whole answer."""
        return respond(self._complete_reply(self.lm.answer([self.request], self.settings)[0]))

    def stream(self, respond: Respond[Response]) -> Generator[Response, None, None]:
        """Stream the answer. Errors of the request are raised here, before the first piece is read."""
        return self._chunks(self._open_stream(), respond)

    def _open_stream(self) -> Stream:
        """Open a stream, and store its report at once, because the caller may close it early."""
        stream = self.lm.stream_answer(self.request, self.settings)
        reports.store(self.owner, stream.report.as_dict())
        return stream

    def _chunks(self, stream: Stream, respond: Respond[Response]) -> Generator[Response, None, None]:
        growing = GrowingAnswer(self.form)
        with closing(stream):
            for piece in stream:
                if delta := growing.add(piece):
                    yield respond(Reply(growing.shown, delta))
        yield respond(self._last_reply(stream.generation, growing))

    async def _achunks(self, stream: Stream, respond: Respond[Response]) -> AsyncGenerator[Response, None]:
        growing = GrowingAnswer(self.form)
        async with aclosing(bridge.pieces(stream)) as pieces:
            async for piece in pieces:
                if delta := growing.add(piece):
                    yield respond(Reply(growing.shown, delta))
        yield respond(self._last_reply(stream.generation, growing))

    def _complete_reply(self, generation: Generation) -> Reply:
        """Return the complete answer, and store its report."""
        reports.store(self.owner, generation.report.as_dict())
        text, calls, errors = messages.split_tool_calls(self.form, generation.text, self.parallel)
        return Reply(text, None, generation, self.form.logprobs(self.lm, generation), calls, errors)

    def _last_reply(self, generation: Generation, growing: GrowingAnswer) -> Reply:
        answer = self._complete_reply(generation)
        return replace(answer, delta=growing.rest(answer.text))


async def aanswer(prepare: Callable[[], PreparedCall], respond: Respond[Response]) -> Response:
    """Prepare a call and answer it, both outside the event loop."""

    def work(cancelled: threading.Event) -> tuple[PreparedCall, Generation]:
        prepared = prepare()
        return prepared, prepared.lm.answer([prepared.request], prepared.settings, cancelled)[0]

    prepared, generation = await bridge.run(work)
    return respond(prepared._complete_reply(generation))


async def astream(prepare: Callable[[], PreparedCall], respond: Respond[Response]) -> AsyncGenerator[Response, None]:
    """Prepare a call and stream the answer, both outside the event loop."""
    prepared = await bridge.run(lambda _: prepare())
    return prepared._achunks(prepared._open_stream(), respond)
