"""What the server and the proxy share: routes for operators, limits, API key, errors, logs and metrics."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from openai.types.shared import ErrorObject
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbias import __version__
from ragbias.serving.errors import GONE, ApiError, from_validation, internal, refused
from ragbias.serving.settings import ServerSettings
from ragbias.serving.telemetry import Metrics, log

OPEN = ("/health", "/ready", "/metrics")  # need no key, and are not logged
SECONDS_FOR_BODY = 60.0
STATUSES = (400, 401, 404, 408, 413, 429, 500, 503)  # of errors, for the OpenAPI schema
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
T = TypeVar("T")


class ErrorBody(BaseModel):
    """OpenAI's error format."""

    error: ErrorObject


def base_app(
    title: str,
    settings: ServerSettings,
    metrics: Metrics,
    why_not_ready: Callable[[], Awaitable[str]],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """An application with ``/health``, ``/ready`` and ``/metrics`` only.

    ``app.state.draining`` makes it report that it is not ready.

    Args:
        why_not_ready: gives the reason why requests cannot be answered; empty if they can.
    """
    responses: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in STATUSES}
    app = FastAPI(title=title, version=__version__, lifespan=lifespan, responses=responses)
    app.state.draining, app.state.max_body_bytes = False, settings.max_body_bytes
    app.router.route_class = BoundedRoute
    app.add_middleware(Guard, api_key=settings.api_key.encode(), metrics=metrics)
    app.add_exception_handler(HTTPException, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """Requests are answered."""
        if reason := "the server is shutting down" if app.state.draining else await why_not_ready():
            raise ApiError(503, reason, None, "not_ready")
        return {"status": "ready"}

    @app.get("/metrics")
    async def exposition() -> Response:
        """Prometheus metrics."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return app


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        found = error
    else:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        found = ApiError(error.status_code, error.detail, None, code)
    # the client may have made up the name of an unknown field
    field = found.param and found.code != "unknown_parameter" and re.split(r"[.\[]", found.param)[0]
    request.state.log_fields |= {"code": found.code, "param": field or None}
    response = found.response()
    response.headers.update(error.headers or {})
    return response


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _on_error(request, from_validation(error.errors()))


class BoundedRequest(Request):
    """A request whose body is bounded in size and time, and whose JSON is strict UTF-8."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            try:
                self._body = await asyncio.wait_for(self._read(), SECONDS_FOR_BODY)
            except asyncio.TimeoutError:
                raise ApiError(408, f"the body did not arrive within {SECONDS_FOR_BODY:g} seconds") from None
            except ClientDisconnect:
                raise ApiError(GONE, "the client disconnected") from None
        return self._body

    async def json(self) -> Any:
        try:
            return from_json(await self.body())
        except ValueError as error:
            raise refused(None, f"the body is not valid JSON: {error}") from error

    async def _read(self) -> bytes:
        most = self.app.state.max_body_bytes
        too_large = ApiError(413, f"the body is larger than {most:,} bytes", None, "body_too_large")
        declared = self.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > most:
            raise too_large
        body = bytearray()
        async for part in self.stream():
            body += part
            if len(body) > most:
                raise too_large
        return bytes(body)


class BoundedRoute(APIRoute):
    """Read the bodies of requests as ``BoundedRequest`` does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(BoundedRequest(request.scope, request.receive))

        return bounded


class Guard:
    """Check the API key; log and count each request.

    Routes add to ``scope["state"]["log_fields"]``, never text of a prompt.
    """

    def __init__(self, app: ASGIApp, api_key: bytes, metrics: Metrics) -> None:
        self._app, self._key, self._metrics = app, api_key, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        fields: dict[str, Any] = {"request_id": request_id}
        scope.setdefault("state", {})["log_fields"] = fields
        begin, status = time.perf_counter(), GONE

        async def recorded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            if scope["path"] in OPEN or self._has_key(headers):
                await self._app(scope, receive, recorded)
            else:
                fields["code"] = "invalid_api_key"
                message = "wrong or missing API key; send it as `Authorization: Bearer KEY`"
                await ApiError(401, message, None, fields["code"]).response()(scope, receive, recorded)
        except Exception as error:
            log("failed", logging.ERROR, error, request_id=request_id)
            if status != GONE:  # the response has begun
                raise
            await internal(request_id).response()(scope, receive, recorded)
        finally:
            self._record(scope, fields.pop("status", status), time.perf_counter() - begin, fields)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip(" ").encode("latin-1")  # other blanks may be bytes of a letter
        return not self._key or (scheme.lower() == "bearer" and hmac.compare_digest(given, self._key))

    def _record(self, scope: Scope, status: int, seconds: float, fields: dict[str, Any]) -> None:
        path = getattr(scope.get("route"), "path", "other")  # clients must not make up labels
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        if status == GONE:
            self._metrics.disconnects.inc()
        if path not in OPEN:
            level = logging.ERROR if status >= 500 else logging.INFO
            log("request", level, method=scope["method"], path=path, status=status, seconds=round(seconds, 4), **fields)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled if the client disconnects.

    Raises:
        ApiError: 499, the client disconnected.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(GONE, "the client disconnected")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events.

    Args:
        events: bytes or text of the events.
        close: called when the events end or the client disconnects.
        log_fields: of the request; the status becomes 499 for a client that leaves.
    """

    def __init__(
        self,
        events: AsyncGenerator[str | bytes, None],
        close: Callable[[], Awaitable[None]],
        log_fields: dict[str, Any],
        headers: dict[str, str],
        status: int = 200,
    ) -> None:
        super().__init__(events, status, headers, None if "content-type" in headers else "text/event-stream")
        self._events, self._close, self._log_fields = events, close, log_fields

    async def stream_response(self, send: Send) -> None:
        await super().stream_response(send)
        del self._log_fields["status"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._log_fields["status"] = GONE  # until all events are sent
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            await self._close()
