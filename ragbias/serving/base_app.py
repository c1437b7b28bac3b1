"""What the server's application and the proxy's share: health, readiness, metrics, errors, and clients that leave."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ragbias import __version__
from ragbias.serving import metrics
from ragbias.serving.errors import ApiError, of_validation
from ragbias.serving.metrics import Metrics
from ragbias.serving.middleware import GONE, Guard
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


class ClientGoneError(Exception):
    """The client has left before its response began."""


def base_app(
    title: str,
    settings: ServerSettings,
    counters: Metrics,
    why_not_ready: Callable[[], Awaitable[str]],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """An application without paths of its own; ``app.state.draining`` set, it says that it is not ready any more.

    Args:
        why_not_ready: why requests cannot be answered now; empty if they can.
    """
    app = FastAPI(title=title, version=__version__, lifespan=lifespan, responses=ERRORS)
    app.state.draining = False
    app.add_middleware(Guard, settings=settings, metrics=counters)
    _add_error_handlers(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """Requests are answered."""
        if reason := "the server is ending" if app.state.draining else await why_not_ready():
            raise ApiError(503, reason, None, "not_ready")
        return {"status": "ready"}

    @app.get("/metrics")
    async def exposition() -> Response:
        """For Prometheus."""
        return Response(counters.exposition(), media_type=metrics.CONTENT_TYPE)

    return app


async def unless_gone(request: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``.

    Raises:
        ClientGoneError: the client has left, and ``work`` was cancelled.
    """
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _field(error: ApiError) -> str | None:
    """The body's field that an error is about, without the names that a client made up."""
    return None if error.param is None or error.code == "unknown_parameter" else re.split(r"[.\[]", error.param)[0]


def _add_error_handlers(app: FastAPI) -> None:
    """Make every error one of OpenAI's shape."""

    async def api(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        request.state.log_fields |= {"code": error.code, "param": _field(error)}
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

    async def gone(request: HttpRequest, error: Exception) -> Response:
        request.state.log_fields["status"] = GONE
        return Response(status_code=GONE)

    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(ClientGoneError, gone)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
