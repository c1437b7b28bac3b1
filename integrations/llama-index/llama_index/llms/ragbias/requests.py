"""Prompts made ready, and how they are answered: whole or in chunks, with or without an event loop."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, closing
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from llama_index.llms.ragbias.responses import Answer, Reply

from ragbias.adapters import asyncio_bridge as bridge
from ragbias.adapters.tool_use import AnswerFormat
from ragbias.generation.report import Generation
from ragbias.generation.request import Request
from ragbias.generation.streaming import Stream
from ragbias.lm import DebiasedLM

Response = TypeVar("Response")
Respond = Callable[[Answer], Response]

# One report per LLM in each context: threads and tasks see their own.
_reports: ContextVar[Mapping[object, dict[str, Any]]] = ContextVar("ragbias_llama_index_reports")


def last_report(owner: object) -> dict[str, Any] | None:
    """The report of the last request that `owner` answered in this thread or task."""
    return _reports.get({}).get(owner)


@dataclass(frozen=True)
class Prepared:
    """A prompt that an LLM was asked, made ready to run.

    Attributes:
        owner: what the report of the answer is kept for.
        arguments: of `DebiasedLM.batch` and `DebiasedLM.stream`.
        form: how to read the answer.
        parallel: whether it may have more than one call of a tool.
    """

    owner: object
    lm: DebiasedLM
    request: Request
    arguments: dict[str, Any]
    form: AnswerFormat = field(default_factory=AnswerFormat)
    parallel: bool = True

    def answer(self, respond: Respond[Response]) -> Response:
        """The whole answer."""
        return self._whole(self._generation(None), respond)

    def stream(self, respond: Respond[Response]) -> Generator[Response, None, None]:
        """A generator over a stream that is open already, so that errors of the call are raised by the call."""
        return self._chunks(self._open(), Reply(respond, self.form, self.parallel))

    def _chunks(self, stream: Stream, reply: Reply[Response]) -> Generator[Response, None, None]:
        with closing(stream):
            for delta in stream:
                if chunk := reply.chunk(delta):
                    yield chunk
        yield reply.last(self._remembered(stream.generation))

    async def _achunks(self, stream: Stream, reply: Reply[Response]) -> AsyncGenerator[Response, None]:
        async with aclosing(bridge.pieces(stream)) as pieces:
            async for delta in pieces:
                if chunk := reply.chunk(delta):
                    yield chunk
        yield reply.last(self._remembered(stream.generation))

    def _generation(self, cancelled: threading.Event | None) -> Generation:
        (generation,) = self.lm.batch([self.request], cancelled=cancelled, **self.arguments)
        return generation

    def _open(self) -> Stream:
        return self.lm.stream(self.request, **self.arguments)

    def _whole(self, generation: Generation, respond: Respond[Response]) -> Response:
        return Reply(respond, self.form, self.parallel).whole(self._remembered(generation))

    def _remembered(self, generation: Generation) -> Generation:
        _reports.set({**_reports.get({}), self.owner: generation.report.as_dict()})
        return generation


async def aanswer(prepare: Callable[[], Prepared], respond: Respond[Response]) -> Response:
    """The whole answer; the prompt is made ready off the event loop too."""

    def work(cancelled: threading.Event) -> tuple[Prepared, Generation]:
        prepared = prepare()
        return prepared, prepared._generation(cancelled)

    prepared, generation = await bridge.run(work)
    return prepared._whole(generation, respond)


async def astream(prepare: Callable[[], Prepared], respond: Respond[Response]) -> AsyncGenerator[Response, None]:
    """A generator over a stream that is open already; the prompt is made ready off the event loop too."""
    prepared = await bridge.run(lambda _: prepare())
    return prepared._achunks(prepared._open(), Reply(respond, prepared.form, prepared.parallel))
