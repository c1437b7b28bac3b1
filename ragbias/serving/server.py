"""The common base of server and proxy: operator routes, limits, API keys, errors, logs and metrics.

Logs and metrics never contain text of prompts or answers.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
import traceback
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from openai.types.shared import ErrorObject
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbias import __version__
from ragbias.errors import ArgumentError
from ragbias.serving.errors import GONE, ApiError, bad_request, from_validation, internal_error, shutdown_error
from ragbias.serving.settings import ServerSettings

PUBLIC_ROUTES = ("/health", "/ready", "/metrics")  # need no API key, and are not logged
SECONDS_FOR_BODY = 60.0
ERROR_STATUSES = (400, 401, 404, 408, 413, 429, 500, 503)  # errors in the OpenAPI schema
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
WRONG_KEY = ApiError(401, "wrong or missing API key; send it as `Authorization: Bearer KEY`", None, "invalid_api_key")
_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
logger = logging.getLogger("ragbias.serving")
T = TypeVar("T")


class JsonLines(logging.Formatter):
    """Format log records as lines of JSON, without error messages, because these may quote a prompt."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage().partition("\n")[0],  # asyncio's later lines quote the exception
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            line["raised_at"] = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-5:]]
        return json.dumps(line, ensure_ascii=False)


def log(event: str, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Write a log line. Fields that are None are left out."""
    present = {name: value for name, value in fields.items() if value is not None}
    logger.log(level, event, extra={"fields": present}, exc_info=error)


def log_to_stderr() -> None:
    """Write the server's log, and warnings and errors of libraries, to standard error as JSON."""
    logging.captureWarnings(True)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name, level in (("", logging.WARNING), ("ragbias.serving", logging.INFO), ("uvicorn.error", logging.WARNING)):
        library = logging.getLogger(name)
        library.handlers, library.propagate = [handler], False
        library.setLevel(level)


class Metrics:
    """Prometheus metrics of one application, in a separate registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, namespace="ragbias", registry=registry)
        histogram = partial(Histogram, namespace="ragbias", registry=registry)
        self.requests = counter("requests", "Requests by path and status.", ["path", "status"])
        self.seconds = histogram("request_seconds", "Time to the last byte of a response.", ["path"], buckets=BUCKETS)
        self.first_token = histogram("time_to_first_token_seconds", "Of streams.", ["model"], buckets=BUCKETS)
        self.answers = counter("answers", "Answers by the method that ran.", ["model", "method"])
        self.plain = counter("plain_answers", "Answers without the requested method.", ["model", "method"])
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens.", ["model"])
        self.cached_tokens = counter("cached_tokens", "Prompt tokens from the document cache.", ["model"])
        self.completion_tokens = counter("completion_tokens", "Answer tokens.", ["model"])
        self.disconnects = counter("disconnects", "Requests whose client disconnected.")
        self.batches = histogram("batch_requests", "Batch sizes.", ["model"], buckets=(1, 2, 4, 8, 16, 32, 64))
        self.waiting = Gauge("ragbias_waiting_requests", "Waiting requests.", ["model"], registry=registry)
        self.running = Gauge("ragbias_running_requests", "Running requests.", ["model"], registry=registry)


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
    """Create an application with ``/health``, ``/ready`` and ``/metrics``. ``/ready`` is a 503 during a shutdown."""
    responses: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in ERROR_STATUSES}
    app = FastAPI(title=title, version=__version__, lifespan=lifespan, responses=responses)
    app.state.draining = False
    app.state.max_body_bytes = settings.max_body_bytes
    app.state.grace_ended = asyncio.Event()  # set when the grace period of a shutdown ends
    app.router.route_class = BoundedRoute
    api_keys = list(filter(None, (line.strip(" \r") for line in settings.api_key.split("\n"))))
    if settings.api_key and not api_keys:
        raise ArgumentError("the API key is blank; leave it out, or give a key")
    app.add_middleware(Guard, api_keys=api_keys, metrics=metrics)
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _on_error)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Return a 200 while the process runs."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """Return a 200 while the server answers requests, otherwise a 503."""
        reason = "the server is shutting down" if app.state.draining else await why_not_ready()
        if reason:
            raise ApiError(503, reason, None, "not_ready")
        return {"status": "ready"}

    @app.get("/metrics")
    async def exposition() -> Response:
        """Export Prometheus metrics."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = from_validation(error.errors())
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    api_error = error if isinstance(error, ApiError) else ApiError(error.status_code, error.detail, None, code)
    field = None
    if api_error.param and api_error.code != "unknown_parameter":  # an unknown name may be any text
        field = re.split(r"[.\[]", api_error.param)[0]
    request.state.log_fields |= {"code": api_error.code, "param": field}
    response = api_error.response()
    response.headers.update(error.headers or {})
    return response


class BoundedRequest(Request):
    """A request that limits the size and the transfer time of the body, and requires valid UTF-8."""

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
            raise bad_request(None, f"the body is not valid JSON: {error}") from error

    async def _read(self) -> bytes:
        limit = self.app.state.max_body_bytes
        body = bytearray()
        async for part in self.stream():
            body += part
            if len(body) > limit:
                size = self.headers.get("content-length", f"more than {limit}")
                message = f"the body has {size} bytes; the server's --max-body-mb allows {limit}"
                raise ApiError(413, message, None, "body_too_large")
        return bytes(body)


class BoundedRoute(APIRoute):
    """A route that reads request bodies with ``BoundedRequest``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(BoundedRequest(request.scope, request.receive))

        return bounded


class Guard:
    """Middleware that checks API keys, and logs and counts requests.

    It puts the client's key into ``request.state.api_key``. Routes can add fields to ``request.state.log_fields``.
    """

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._keys = {key.encode(): key for key in api_keys}
        for key in api_keys:  # clients encode keys as UTF-8 or Latin-1
            with suppress(UnicodeEncodeError):
                self._keys[key.encode("latin-1")] = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client_id = headers.get("x-request-id", "")
        request_id = client_id if _REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex
        fields: dict[str, Any] = {"request_id": request_id}
        key = self._key_of(headers)
        scope.setdefault("state", {}).update(log_fields=fields, api_key=key)
        begin = time.perf_counter()
        status = 0
        ended = False

        async def send_and_record(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body")

        app = self._app
        if scope["path"] not in PUBLIC_ROUTES and key is None:
            app = WRONG_KEY.response()
            fields["code"] = WRONG_KEY.code
        try:
            await app(scope, receive, send_and_record)
        except Exception as error:
            log("failed", logging.ERROR, error, request_id=request_id)
            if status:  # the response has started
                raise
            await internal_error(request_id).response()(scope, receive, send_and_record)
        finally:
            self._record(scope, status if ended else GONE, time.perf_counter() - begin, fields)

    def _key_of(self, headers: Headers) -> str | None:
        """Return the client's API key, None if it is wrong or missing, or "" if the server needs no key."""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        sent = credentials.strip(" ").encode("latin-1")  # other whitespace bytes may be part of a UTF-8 letter
        matches = [key for encoded, key in self._keys.items() if hmac.compare_digest(sent, encoded)]
        if not self._keys:
            return ""
        return matches[0] if matches and scheme.lower() == "bearer" else None

    def _record(self, scope: Scope, status: int, seconds: float, fields: dict[str, Any]) -> None:
        path = getattr(scope.get("route"), "path", "other")  # an arbitrary path would create a new label
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        if status == GONE:
            self._metrics.disconnects.inc()
        if path not in PUBLIC_ROUTES:
            level = logging.ERROR if status >= 500 else logging.INFO
            log("request", level, method=scope["method"], path=path, status=status, seconds=round(seconds, 4), **fields)


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Await ``work``. Cancel it and raise a 499 if the client disconnects, or a 503 if the grace period ends."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    ended = asyncio.ensure_future(request.app.state.grace_ended.wait())
    try:
        await asyncio.wait({task, gone, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise shutdown_error() if ended.done() else ApiError(GONE, "the client disconnected")
        return task.result()
    finally:
        for future in (task, gone, ended):
            future.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """A response of server-sent events. It calls ``close`` after the last event, or if the client disconnects.

    If the grace period of a shutdown ends, the last event is an error.
    """

    def __init__(
        self,
        events: AsyncGenerator[str | bytes, None],
        close: Callable[[], Awaitable[None]],
        headers: dict[str, str],
        status: int = 200,
    ) -> None:
        media_type = None if "content-type" in headers else "text/event-stream"
        super().__init__(self._until_shutdown(), status, headers, media_type)
        self._events, self._close = events, close
        self._ended = self._next = asyncio.Future[Any]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ended = asyncio.ensure_future(scope["app"].state.grace_ended.wait())
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended.cancel()
            self._next.cancel()
            await asyncio.wait({self._next})  # a running generator cannot be closed
            await self._events.aclose()
            await self._close()

    async def _until_shutdown(self) -> AsyncGenerator[str | bytes, None]:
        with suppress(StopAsyncIteration):
            while True:
                self._next = asyncio.ensure_future(anext(self._events))
                await asyncio.wait({self._next, self._ended}, return_when=asyncio.FIRST_COMPLETED)
                if not self._next.done():
                    yield shutdown_error().as_sse()
                    return
                yield self._next.result()
