"""The HTTP application: OpenAI's paths over an engine."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeVar

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from openai.types import Completion
from openai.types.chat import ChatCompletion
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ragbias import __version__
from ragbias.serving import answers, metrics
from ragbias.serving.engine import Answering, Engine, Json
from ragbias.serving.errors import ApiError, internal, of_validation
from ragbias.serving.logs import log
from ragbias.serving.metrics import Metrics
from ragbias.serving.middleware import GONE, Guard
from ragbias.serving.schemas import ChatRequest, CompletionRequest, Request, TokenizeRequest
from ragbias.serving.settings import ServerSettings

T = TypeVar("T")
STATUSES = {
    400: "A field is wrong; `param` names it.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    429: "Too many requests are waiting.",
    500: "A mistake of the server.",
    503: "The model is being loaded, or the server ends.",
}


class ErrorDetail(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's shape of errors."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in STATUSES.items()
}


def create_app(
    engine: Engine,
    settings: ServerSettings,
    counters: Metrics,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """The application; ``app.state.draining`` set, it says that it is not ready any more."""
    app = FastAPI(title="ragbias", version=__version__, lifespan=lifespan, responses=ERRORS)
    app.state.draining = False
    app.add_middleware(Guard, settings=settings, metrics=counters)
    add_error_handlers(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """Requests are answered."""
        if app.state.draining or not engine.is_ready:
            raise ApiError(503, "the server is ending" if app.state.draining else "not ready", None, "not_ready")
        return {"status": "ready"}

    @app.get("/metrics")
    async def exposition() -> Response:
        """For Prometheus."""
        return Response(counters.exposition(), media_type=metrics.CONTENT_TYPE)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The models that answer here."""
        return {"object": "list", "data": await engine.models()}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One model."""
        for card in await engine.models():
            if card["id"] == name:
                return card
        raise ApiError(404, f"there is no model {name!r}", "model", "model_not_found")

    @app.post("/v1/chat/completions", responses={200: {"model": ChatCompletion}}, response_model=None)
    async def chat(body: ChatRequest, request: HttpRequest) -> Response:
        """Answer a conversation."""
        return await _answered(engine, body, request, counters)

    @app.post("/v1/completions", responses={200: {"model": Completion}}, response_model=None)
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
    told: dict[str, Any] = request.state.told
    told |= {"model": body.model, "stream": bool(body.stream)}
    told["documents_sent"] = None if body.documents is None else len(body.documents)
    if not body.stream:
        whole = await unless_gone(request, engine.answer(body))
        if whole is None:
            return _gone(told)
        told |= _facts(whole["ragbias"], whole["usage"], whole["choices"][0]["finish_reason"])
        return JSONResponse(whole, headers=answers.headers(whole["ragbias"]))
    answering = await unless_gone(request, engine.stream(body))
    if answering is None:
        return _gone(told)
    told |= _facts(answering.report, None, None)
    return EventStream(answering, told, counters, body.model, begin)


def _gone(told: dict[str, Any]) -> Response:
    told["status"] = GONE
    return Response(status_code=GONE)


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


async def unless_gone(request: HttpRequest, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``, or ``None`` once the client has left, and ``work`` was cancelled."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, watch):
            each.cancel()


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events, ``data: [DONE]`` last; an error on the way is an event too.

    Args:
        begin: when the request had been read, for the time to the first token.
    """

    def __init__(self, answering: Answering, told: dict[str, Any], counters: Metrics, model: str, begin: float) -> None:
        self._answering, self._told, self._counters, self._model = answering, told, counters, model
        self._begin = begin
        self._complete = False
        head = {**answers.headers(answering.report), "cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(self._events(), media_type="text/event-stream", headers=head)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if not self._complete:
                self._told["status"] = GONE
            await self.body_iterator.aclose()  # type: ignore[attr-defined]
            await self._answering.close()

    async def _events(self) -> AsyncIterator[str]:
        try:
            async with aclosing(self._answering.chunks()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    self._note(chunk)
                    yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
        except ApiError as error:
            self._told["code"] = error.code
            yield f"data: {json.dumps(error.as_dict())}\n\n"
        except Exception as error:
            log("failed", logging.ERROR, error, request_id=self._told["request_id"])
            yield f"data: {json.dumps(internal(self._told['request_id']).as_dict())}\n\n"
        self._complete = True
        yield "data: [DONE]\n\n"

    def _note(self, chunk: Json) -> None:
        if "seconds_to_first" not in self._told and _has_text(chunk):
            seconds = time.perf_counter() - self._begin
            self._told["seconds_to_first"] = round(seconds, 4)
            self._counters.first.labels(self._model).observe(seconds)
        if "ragbias" in chunk:
            self._told["finish_reason"] = chunk["choices"][0]["finish_reason"]
        if counts := chunk.get("usage"):
            self._told |= {name: counts[name] for name in ("prompt_tokens", "completion_tokens")}


def _has_text(chunk: Json) -> bool:
    """Whether a chunk brings text or calls; a stream's first one only names the role."""
    deltas = (each.get("delta") or {} for each in chunk["choices"])
    return any(each.get("text") for each in chunk["choices"]) or any(
        each.get("content") or each.get("tool_calls") for each in deltas
    )


def _field(error: ApiError) -> str | None:
    """The body's field that an error is about, without the names that a client made up."""
    return None if error.param is None or error.code == "unknown_parameter" else re.split(r"[.\[]", error.param)[0]


def add_error_handlers(app: FastAPI) -> None:
    """Make every error one of OpenAI's shape."""

    async def api(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        request.state.told |= {"code": error.code, "param": _field(error)}
        return JSONResponse(error.as_dict(), error.status, error.headers())

    async def validation(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await api(request, of_validation(error.errors()))

    async def http(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        response = await api(request, ApiError(error.status_code, str(error.detail), None, code))
        response.headers.update(error.headers or {})
        return response

    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
