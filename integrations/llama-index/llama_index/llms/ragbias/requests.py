"""Prepared calls, answered whole or in chunks, with or without an event loop."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from llama_index.llms.ragbias import tool_calls
from llama_index.llms.ragbias.responses import Answer

from ragbias.adapters import asyncio_bridge as bridge
from ragbias.adapters.remote import RemoteLM, chat_logprobs
from ragbias.adapters.run_state import LastReports, Owner
from ragbias.adapters.tool_use import AnswerFormat, GrowingAnswer
from ragbias.generation.report import Generation
from ragbias.generation.request import Request
from ragbias.generation.streaming import Stream
from ragbias.lm import DebiasedLM

Response = TypeVar("Response")
Respond = Callable[[Answer], Response]

reports = LastReports("ragbias_llama_index_reports")


@dataclass(frozen=True)
class PreparedCall:
    """A prepared call of the LLM.

    Attributes:
        owner: identifies the LLM in `reports`.
        settings: keyword arguments of `DebiasedLM.batch` and `DebiasedLM.stream`.
        form: how to read the answer.
        parallel: whether the answer may have more than one call of a tool.
    """

    owner: Owner
    lm: DebiasedLM | RemoteLM
    request: Request
    settings: dict[str, Any]
    form: AnswerFormat = field(default_factory=AnswerFormat)
    parallel: bool = True

    def answer(self, respond: Respond[Response]) -> Response:
        """The whole answer."""
        return respond(self._whole(self._generation(None)))

    def stream(self, respond: Respond[Response]) -> Generator[Response, None, None]:
        """A generator over a stream that is open already, so that errors of the call are raised by the call."""
        return self._chunks(self.lm.stream(self.request, **self.settings), respond)

    def _chunks(self, stream: Stream, respond: Respond[Response]) -> Generator[Response, None, None]:
        growing = GrowingAnswer(self.form)
        with closing(stream):
            for piece in stream:
                if delta := growing.add(piece):
                    yield respond(Answer(growing.shown, delta))
        yield respond(self._last(stream.generation, growing))

    async def _achunks(self, stream: Stream, respond: Respond[Response]) -> AsyncGenerator[Response, None]:
        growing = GrowingAnswer(self.form)
        async with aclosing(bridge.pieces(stream)) as pieces:
            async for piece in pieces:
                if delta := growing.add(piece):
                    yield respond(Answer(growing.shown, delta))
        yield respond(self._last(stream.generation, growing))

    def _generation(self, cancelled: threading.Event | None) -> Generation:
        (generation,) = self.lm.batch([self.request], cancelled=cancelled, **self.settings)
        return generation

    def _whole(self, generation: Generation) -> Answer:
        """The complete answer; stores its report."""
        reports.note(self.owner, generation.report.as_dict())
        text, calls, errors = tool_calls.read(self.form, generation.text, self.parallel)
        logprobs = chat_logprobs(self.lm, generation, self.settings.get("keep_special", ()))
        return Answer(text, None, generation, logprobs, calls, errors)

    def _last(self, generation: Generation, growing: GrowingAnswer) -> Answer:
        answer = self._whole(generation)
        return replace(answer, delta=growing.rest(answer.text))


async def aanswer(prepare: Callable[[], PreparedCall], respond: Respond[Response]) -> Response:
    """The whole answer; the prompt is prepared off the event loop too."""

    def work(cancelled: threading.Event) -> tuple[PreparedCall, Generation]:
        prepared = prepare()
        return prepared, prepared._generation(cancelled)

    prepared, generation = await bridge.run(work)
    return respond(prepared._whole(generation))


async def astream(prepare: Callable[[], PreparedCall], respond: Respond[Response]) -> AsyncGenerator[Response, None]:
    """A generator over a stream that is open already; the prompt is prepared off the event loop too."""
    prepared = await bridge.run(lambda _: prepare())
    return prepared._achunks(prepared.lm.stream(prepared.request, **prepared.settings), respond)
