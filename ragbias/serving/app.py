"""The HTTP application of the server: OpenAI's routes over an engine."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from openai.types import Completion
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from ragbias.serving.answers import report_headers
from ragbias.serving.errors import ApiError, bad_request, internal_error, unknown_model
from ragbias.serving.schemas import ChatRequest, CompletionRequest, Json, RequestBody, TokenizeRequest
from ragbias.serving.server import EventStream, Metrics, base_app, cancel_on_disconnect, log
from ragbias.serving.settings import ServerSettings


class Engine(Protocol):
    """The interface of an engine, which answers requests. Rejected and failed requests raise ``ApiError``."""

    @property
    def is_ready(self) -> bool:
        """Whether the engine can answer requests now."""

    async def models(self) -> list[Json]:
        """List the models in the format of ``/v1/models``."""

    async def answer(self, body: RequestBody, salt: str = "") -> Json:
        """Return the response body. Cancellation stops the computation at the next token.

        Requests with different salts share no cached documents.
        """

    def stream(self, body: RequestBody, salt: str = "") -> AsyncGenerator[Json, None]:
        """Yield the report, then the chunks. Closing the generator stops the computation at the next token."""

    async def tokens(self, body: TokenizeRequest) -> Json:
        """Return the token ids of a text, their number, and the size of the context window."""


def create_app(
    engine: Engine,
    settings: ServerSettings,
    metrics: Metrics,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """Create the HTTP application of an engine."""

    async def why_not_ready() -> str:
        return "" if engine.is_ready else "not ready"

    app = base_app("ragbias", settings, metrics, why_not_ready, lifespan)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the models."""
        return {"object": "list", "data": await engine.models()}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """Describe one model."""
        cards = {card["id"]: card for card in await engine.models()}
        if name not in cards:
            raise unknown_model(name, cards)
        return cards[name]

    @app.post("/v1/chat/completions", responses=_responses(ChatCompletion), response_model=None)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, completely or, with ``stream``, as server-sent events."""
        return await _respond(engine, body, request, cache_salt(request, body, settings), metrics)

    @app.post("/v1/completions", responses=_responses(Completion), response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue a text, without a chat template."""
        return await _respond(engine, body, request, cache_salt(request, body, settings), metrics)

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        """Return the token ids of a text."""
        return await engine.tokens(body)

    return app


def _responses(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI schema of a complete answer. OpenAPI 3.1 cannot describe events of a stream."""
    return {200: {"model": model, "content": {"text/event-stream": {}}}}


def cache_salt(request: Request, body: RequestBody, settings: ServerSettings) -> str:
    """Return a salt for cached documents, or an empty string if all tenants share the cache.

    The first half is a digest of API key and tenant. The second half also depends on ``prompt_cache_key``.
    """
    if settings.share_cache:
        return ""
    tenant = request.headers.get(settings.tenant_header, "") if settings.tenant_header else ""
    if settings.tenant_header and not tenant:
        message = f"header {settings.tenant_header} is missing; the gateway must set it to the tenant's name"
        raise bad_request(None, message)
    parts = [request.state.api_key, tenant, body.prompt_cache_key or ""]
    return _half_salt(parts[:2]) + _half_salt(parts) if any(parts) else ""


def _half_salt(parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


async def _respond(engine: Engine, body: RequestBody, request: Request, salt: str, metrics: Metrics) -> Response:
    begin = time.perf_counter()
    fields: dict[str, Any] = request.state.log_fields
    fields["stream"] = bool(body.stream)
    fields["documents_sent"] = None if body.documents is None else len(body.documents)
    if body.stream:
        chunks = engine.stream(body, salt)
        report = await cancel_on_disconnect(request, anext(chunks))
        fields["model"] = body.model  # now known to be a served model, not arbitrary text
        _log_report(fields, report)
        headers = {**report_headers(report), "cache-control": "no-cache", "x-accel-buffering": "no"}
        first_token = metrics.first_token.labels(body.model)
        return EventStream(_events(chunks, fields, first_token.observe, begin), chunks.aclose, headers)
    answer = await cancel_on_disconnect(request, engine.answer(body, salt))
    fields["model"] = body.model
    _log_end(fields, answer)
    return JSONResponse(answer, headers=report_headers(answer["ragbias"]))


def _log_report(fields: dict[str, Any], report: Json) -> None:
    fields |= {name: report[name] for name in ("method_requested", "method_ran", "source")}
    fields["documents"] = report["n_found"]


def _log_end(fields: dict[str, Any], body: Json) -> None:
    """Add the report and the token counts to the log fields, if the response body or chunk contains them."""
    if "ragbias" in body:
        _log_report(fields, body["ragbias"])
        fields["finish_reason"] = body["choices"][0]["finish_reason"]
    if usage := body.get("usage"):
        fields |= {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
        fields["cached_tokens"] = usage.get("prompt_tokens_details", {}).get("cached_tokens")


async def _events(
    chunks: AsyncGenerator[Json, None], fields: dict[str, Any], first_token: Callable[[float], None], begin: float
) -> AsyncGenerator[str | bytes, None]:
    """Convert chunks and errors to server-sent events, followed by ``data: [DONE]``."""
    try:
        async for chunk in chunks:
            if "seconds_to_first" not in fields and any(map(_has_text, chunk["choices"])):
                seconds = time.perf_counter() - begin
                fields["seconds_to_first"] = round(seconds, 4)
                first_token(seconds)
            _log_end(fields, chunk)
            yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    except ApiError as error:
        fields["code"] = error.code
        yield error.as_sse()
    except Exception as error:
        log("failed", logging.ERROR, error, request_id=fields["request_id"])
        yield internal_error(fields["request_id"]).as_sse()
    yield "data: [DONE]\n\n"


def _has_text(choice: Json) -> bool:
    """Whether a choice contains text or tool calls. The first chunk of a stream has only a role."""
    delta = choice.get("delta", {})
    return bool(choice.get("text") or delta.get("content") or delta.get("tool_calls"))
