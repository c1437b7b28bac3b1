"""An application in front of somebody else's OpenAI-compatible server: it arranges the documents, and passes all on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from ragbias import methods
from ragbias.adapters.remote.connection import server_address
from ragbias.adapters.remote.events import event_lines
from ragbias.adapters.untokenised import check_arranges_text
from ragbias.errors import RagBiasError
from ragbias.methods import Method
from ragbias.serving import answers
from ragbias.serving.arranging import Arranged, arrange_chat, arrange_prompt
from ragbias.serving.base_app import base_app, unless_gone
from ragbias.serving.errors import ApiError, of_library, of_validation, refused
from ragbias.serving.metrics import Metrics
from ragbias.serving.schemas import ArrangedFields, Json
from ragbias.serving.settings import ServerSettings

NOT_PASSED_ON = {  # headers that belong to one connection, or are made anew
    "connection", "content-encoding", "content-length", "date", "host", "keep-alive", "server", "te", "trailer",
    "transfer-encoding", "upgrade", "accept-encoding",
}  # fmt: skip
BODIES = ("/v1/chat/completions", "/v1/completions")


class Upstream:
    """The server that answers.

    Args:
        url: with or without ``/v1``.
        key: sent instead of the client's; empty: the client's is passed on.
        keep_clients_key: whether the client's key is for the server, not for this application.
        timeout: seconds without a byte.
    """

    def __init__(self, url: str, key: str, keep_clients_key: bool, timeout: float) -> None:
        self.url = server_address("upstream", url)
        self._key, self._keeps = key, keep_clients_key
        self.client = httpx.AsyncClient(base_url=self.url, timeout=timeout)

    async def send(self, request: HttpRequest, body: bytes) -> httpx.Response:
        """The beginning of the response.

        Raises:
            ApiError: 502, nothing answers there; 504, it takes too long.
        """
        headers = {name: value for name, value in request.headers.items() if name not in NOT_PASSED_ON}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        elif not self._keeps:
            headers.pop("authorization", None)
        try:
            url = httpx.URL(path=request.url.path, query=request.url.query.encode())
        except httpx.InvalidURL as error:
            raise refused(None, f"the path cannot be passed on: {error}") from error
        self.client.cookies.clear()  # those of another client's answer are not this one's
        built = self.client.build_request(request.method, url, headers=headers, content=body)
        with upstream_errors():
            return await self.client.send(built, stream=True)


@contextmanager
def upstream_errors() -> Iterator[None]:
    """Within it, errors of the upstream server are those of the API."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise ApiError(504, "the upstream server takes too long", None, "upstream_timeout") from error
    except httpx.HTTPError as error:
        why = f"the upstream server does not answer ({type(error).__name__})"
        raise ApiError(502, why, None, "upstream_unreachable") from error


def create_proxy(upstream: Upstream, method: str | Method, settings: ServerSettings, counters: Metrics) -> FastAPI:
    """The application.

    Args:
        method: of requests that name none.

    Raises:
        MethodError: the method does not only arrange text.
        UnknownMethodError: there is none of this name.
    """
    default = methods.get(method)
    check_arranges_text(default)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await upstream.client.aclose()

    async def why_not_ready() -> str:
        try:
            await upstream.client.get("/v1/models")
        except httpx.HTTPError:
            return "the upstream server does not answer"
        return ""

    app = base_app("ragbias proxy", settings, counters, why_not_ready, lifespan)

    @app.post("/v1/chat/completions")
    @app.post("/v1/completions")
    async def arranged(request: HttpRequest) -> Response:
        """Arrange the documents, and pass the request on."""
        found = arrange(await request.body(), request.url.path, default, settings)
        report = found.report
        request.state.log_fields |= {
            "method_ran": report["method_ran"],
            "documents": report["n_found"],
            "source": report["source"],
        }
        counters.answers.labels("upstream", report["method_ran"]).inc()
        return await _passed_on(request, upstream, json.dumps(found.body).encode(), report)

    @app.api_route("/v1/{path:path}", methods=["GET", "POST", "PUT", "DELETE"])
    async def others(path: str, request: HttpRequest) -> Response:
        """Passed on as it is."""
        return await _passed_on(request, upstream, await request.body(), None)

    return app


def arrange(raw: bytes, path: str, default: Method, settings: ServerSettings) -> Arranged:
    """A body with its documents arranged, and the report.

    Raises:
        ApiError: the body is no JSON object, or a field that is read here is wrong.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise refused(None, "the body is no valid JSON") from error
    if not isinstance(body, dict):
        raise refused(None, "the body is no JSON object")
    try:
        fields = ArrangedFields.model_validate({name: body.pop(name, None) for name in ("documents", "ragbias")})
    except ValidationError as error:
        raise of_validation(error.errors()) from error
    chat = path == BODIES[0]
    try:
        method = default if fields.options.method is None else methods.get(fields.options.method)
        check_arranges_text(method)
        return (arrange_chat if chat else arrange_prompt)(body, fields, method, settings)
    except RagBiasError as error:
        raise of_library(error, "messages" if chat else "prompt") from error


async def _passed_on(request: HttpRequest, upstream: Upstream, body: bytes, report: Json | None) -> Response:
    response = await unless_gone(request, upstream.send(request, body))
    headers = {name: value for name, value in response.headers.items() if name not in NOT_PASSED_ON}
    if report is not None:
        headers |= answers.headers(report)
    if "text/event-stream" in response.headers.get("content-type", ""):
        return _Stream(response, headers, report, request.state.log_fields)
    async with aclosing(response):
        with upstream_errors():
            content = await unless_gone(request, response.aread())
    return _whole(content, response.status_code, headers, report)


def _whole(content: bytes, status: int, headers: Mapping[str, str], report: Json | None) -> Response:
    if report is not None and status == 200:
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            kept = {name: value for name, value in headers.items() if name != "content-type"}
            return Response(json.dumps({**answer, "ragbias": report}), status, kept, "application/json")
    return Response(content, status, dict(headers))


class _Stream(StreamingResponse):
    """The upstream server's events; the one with the reason to finish has the report."""

    def __init__(
        self, response: httpx.Response, headers: Mapping[str, str], report: Json | None, noted: dict[str, Any]
    ) -> None:
        self._upstream = response
        super().__init__(self._events(report, noted), response.status_code, dict(headers))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._upstream.aclose()

    async def _events(self, report: Json | None, noted: dict[str, Any]) -> AsyncIterator[bytes]:
        try:
            with upstream_errors():
                async for line in event_lines(self._upstream):
                    yield (_with_report(line, report) if report is not None else line) + b"\n"
        except ApiError as error:
            noted["code"] = error.code
            yield f"\ndata: {json.dumps(error.as_dict())}\n\n".encode()


def _with_report(line: bytes, report: Json) -> bytes:
    if not line.startswith(b"data: {") or b'"finish_reason"' not in line:
        return line
    try:
        event = json.loads(line[6:])
        ends = any(choice.get("finish_reason") for choice in event["choices"])
    except (ValueError, KeyError, AttributeError, TypeError):
        return line
    return b"data: " + json.dumps({**event, "ragbias": report}).encode() if ends else line
