"""The HTTP application: OpenAI's paths over an engine."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, StreamingResponse
from openai.types import Completion
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from ragbias.serving import answers
from ragbias.serving.base_app import base_app, unless_gone
from ragbias.serving.engine import Answering, Engine
from ragbias.serving.errors import ApiError, internal, unknown_model
from ragbias.serving.logs import log
from ragbias.serving.metrics import Metrics
from ragbias.serving.middleware import GONE
from ragbias.serving.schemas import ChatRequest, CompletionRequest, Json, Request, TokenizeRequest
from ragbias.serving.settings import ServerSettings


def _answer_of(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The schema of an answer that comes whole; events, where ``stream`` is set, have none in OpenAPI 3.1."""
    return {200: {"model": model, "content": {"text/event-stream": {}}}}


def create_app(
    engine: Engine,
    settings: ServerSettings,
    counters: Metrics,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """OpenAI's paths over an engine, in an application as of ``base_app``."""

    async def why_not_ready() -> str:
        return "" if engine.is_ready else "not ready"

    app = base_app("ragbias", settings, counters, why_not_ready, lifespan)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The models that answer here."""
        return {"object": "list", "data": await engine.models()}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One model."""
        cards = {card["id"]: card for card in await engine.models()}
        if name not in cards:
            raise unknown_model(name, cards)
        return cards[name]

    @app.post("/v1/chat/completions", responses=_answer_of(ChatCompletion), response_model=None)
    async def chat(body: ChatRequest, request: HttpRequest) -> Response:
        """Answer a conversation."""
        return await _answered(engine, body, request, counters)

    @app.post("/v1/completions", responses=_answer_of(Completion), response_model=None)
    async def completions(body: CompletionRequest, request: HttpRequest) -> Response:
        """Continue a text."""
        return await _answered(engine, body, request, counters)

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        """The tokens of a text."""
        return await engine.tokens(body)

    return app


async def _answered(engine: Engine, body: Request, request: HttpRequest, counters: Metrics) -> Response:
    begin = time.perf_counter()
    fields: dict[str, Any] = request.state.log_fields
    fields |= {"model": body.model, "stream": bool(body.stream)}
    fields["documents_sent"] = None if body.documents is None else len(body.documents)
    if not body.stream:
        whole = await unless_gone(request, engine.answer(body))
        fields |= _facts(whole["ragbias"], whole["usage"], whole["choices"][0]["finish_reason"])
        return JSONResponse(whole, headers=answers.headers(whole["ragbias"]))
    answering = await unless_gone(request, engine.stream(body))
    fields |= _facts(answering.report, None, None)
    return EventStream(answering, fields, counters, body.model, begin)


def _facts(report: Json, usage: Json | None, finish_reason: str | None) -> Json:
    """What the log tells of an answer."""
    counts = usage or {}
    return {
        "method_requested": report["method_requested"],
        "method_ran": report["method_ran"],
        "documents": report["n_found"],
        "source": report["source"],
        "prompt_tokens": counts.get("prompt_tokens"),
        "completion_tokens": counts.get("completion_tokens"),
        "cached_tokens": counts.get("prompt_tokens_details", {}).get("cached_tokens"),
        "finish_reason": finish_reason,
    }


class EventStream(StreamingResponse):
    """Server-sent events, ``data: [DONE]`` last; an error on the way is an event too.

    Args:
        begin: when the request had been read, for the time to the first token.
    """

    def __init__(
        self, answering: Answering, log_fields: dict[str, Any], counters: Metrics, model: str, begin: float
    ) -> None:
        self._answering, self._log_fields, self._counters, self._model = answering, log_fields, counters, model
        self._begin = begin
        self._complete = False
        head = {**answers.headers(answering.report), "cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(self._events(), media_type="text/event-stream", headers=head)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if not self._complete:
                self._log_fields["status"] = GONE
            await self.body_iterator.aclose()  # type: ignore[attr-defined]
            await self._answering.close()

    async def _events(self) -> AsyncIterator[str]:
        try:
            async with aclosing(self._answering.chunks()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    self._note(chunk)
                    yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
        except ApiError as error:
            self._log_fields["code"] = error.code
            yield f"data: {json.dumps(error.as_dict())}\n\n"
        except Exception as error:
            log("failed", logging.ERROR, error, request_id=self._log_fields["request_id"])
            yield f"data: {json.dumps(internal(self._log_fields['request_id']).as_dict())}\n\n"
        self._complete = True
        yield "data: [DONE]\n\n"

    def _note(self, chunk: Json) -> None:
        if "seconds_to_first" not in self._log_fields and _has_text(chunk):
            seconds = time.perf_counter() - self._begin
            self._log_fields["seconds_to_first"] = round(seconds, 4)
            self._counters.first.labels(self._model).observe(seconds)
        if "ragbias" in chunk:
            self._log_fields["finish_reason"] = chunk["choices"][0]["finish_reason"]
        if counts := chunk.get("usage"):
            self._log_fields |= {name: counts[name] for name in ("prompt_tokens", "completion_tokens")}


def _has_text(chunk: Json) -> bool:
    """Whether a chunk brings text or calls; a stream's first one only names the role."""
    deltas = (each.get("delta") or {} for each in chunk["choices"])
    return any(each.get("text") for each in chunk["choices"]) or any(
        each.get("content") or each.get("tool_calls") for each in deltas
    )
