"""Prompts made ready, and how they are answered: whole or in chunks, with or without an event loop."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from llama_index.llms.ragbias.responses import AnswerSoFar, ResponseBuilder

from ragbias.adapters import asyncio_bridge as bridge
from ragbias.adapters.last_report import LastReports, Owner
from ragbias.adapters.remote import RemoteLM
from ragbias.adapters.tool_use import AnswerFormat
from ragbias.generation.report import Generation
from ragbias.generation.streaming import Stream
from ragbias.lm import DebiasedLM

Response = TypeVar("Response")
Respond = Callable[[AnswerSoFar], Response]

reports = LastReports("ragbias_llama_index_reports")


@dataclass(frozen=True)
class PreparedCall:
    """A call of the LLM, made ready to run.

    Attributes:
        owner: what the report of the answer is kept for.
        arguments: of `DebiasedLM.batch` and `DebiasedLM.stream`.
        form: how to read the answer.
        parallel: whether it may have more than one call of a tool.
    """

    owner: Owner
    lm: DebiasedLM | RemoteLM
    request: Any  # of the lm: a Request, or a RemoteRequest
    arguments: dict[str, Any]
    form: AnswerFormat = field(default_factory=AnswerFormat)
    parallel: bool = True

    def answer(self, respond: Respond[Response]) -> Response:
        """The whole answer."""
        return self._whole(self._generation(None), respond)

    def stream(self, respond: Respond[Response]) -> Generator[Response, None, None]:
        """A generator over a stream that is open already, so that errors of the call are raised by the call."""
        return self._chunks(self._open(), ResponseBuilder(respond, self.form, self.parallel))

    def _chunks(self, stream: Stream, builder: ResponseBuilder[Response]) -> Generator[Response, None, None]:
        with closing(stream):
            for delta in stream:
                if chunk := builder.chunk(delta):
                    yield chunk
        yield builder.last(self._remembered(stream.generation))

    async def _achunks(self, stream: Stream, builder: ResponseBuilder[Response]) -> AsyncGenerator[Response, None]:
        async with aclosing(bridge.pieces(stream)) as pieces:
            async for delta in pieces:
                if chunk := builder.chunk(delta):
                    yield chunk
        yield builder.last(self._remembered(stream.generation))

    def _generation(self, cancelled: threading.Event | None) -> Generation:
        (generation,) = self.lm.batch([self.request], cancelled=cancelled, **self.arguments)
        return generation

    def _open(self) -> Stream:
        return self.lm.stream(self.request, **self.arguments)

    def _whole(self, generation: Generation, respond: Respond[Response]) -> Response:
        return ResponseBuilder(respond, self.form, self.parallel).whole(self._remembered(generation))

    def _remembered(self, generation: Generation) -> Generation:
        reports.note(self.owner, generation.report.as_dict())
        return generation


async def aanswer(prepare: Callable[[], PreparedCall], respond: Respond[Response]) -> Response:
    """The whole answer; the prompt is made ready off the event loop too."""

    def work(cancelled: threading.Event) -> tuple[PreparedCall, Generation]:
        prepared = prepare()
        return prepared, prepared._generation(cancelled)

    prepared, generation = await bridge.run(work)
    return prepared._whole(generation, respond)


async def astream(prepare: Callable[[], PreparedCall], respond: Respond[Response]) -> AsyncGenerator[Response, None]:
    """A generator over a stream that is open already; the prompt is made ready off the event loop too."""
    prepared = await bridge.run(lambda _: prepare())
    return prepared._achunks(prepared._open(), ResponseBuilder(respond, prepared.form, prepared.parallel))
