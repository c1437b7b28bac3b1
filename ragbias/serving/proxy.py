"""The proxy: arrange documents in front of any OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from pydantic import ValidationError

from ragbias import methods
from ragbias.adapters.untokenised import arranged, check_arranges_text, untokenised
from ragbias.boundaries import Boundaries, locate
from ragbias.errors import ArgumentError, RagBiasError
from ragbias.methods import Method
from ragbias.serving.answers import report_headers
from ragbias.serving.base_app import EventStream, base_app, unless_gone
from ragbias.serving.documents import (
    check_found,
    client_method,
    given_documents,
    in_block,
    in_prompt,
    nowhere_to_put,
    with_documents,
)
from ragbias.serving.errors import ApiError, from_library, from_validation, refused
from ragbias.serving.schemas import ArrangedFields, Document, Json
from ragbias.serving.settings import ServerSettings
from ragbias.serving.telemetry import Metrics

NOT_PASSED_ON = {  # headers of one connection, or made anew
    "connection", "content-encoding", "content-length", "date", "host", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "proxy-connection", "server", "te", "trailer", "transfer-encoding", "upgrade",
    "accept-encoding",
}  # fmt: skip
PROMPTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
# routes that are passed on unchanged; others are a 404, so that no client uses the upstream key for more
GET_ROUTES = ("/v1/models", "/v1/models/{name:path}")
POST_ROUTES = ("embeddings", "moderations", "rerank", "score", "responses", "audio/{kind}", "images/{kind}")
MAX_ANSWER_BYTES = 256 * 2**20  # of an unpacked answer that is not streamed

END = "<|im_end|>"  # marks the end of a message, which no document crosses
ROLES = ("system", "developer", "user", "tool")  # whose messages may hold documents
Path = tuple[str | int, ...]  # keys from the body to a text


class Upstream:
    """The server behind the proxy.

    Args:
        url: with or without ``/v1``.
        key: replaces the client's key; empty: see ``keep_clients_key``.
        keep_clients_key: pass the client's key on, because the proxy has none.
        timeout: seconds without a byte.

    Raises:
        ArgumentError: ``url`` is not an address.
    """

    def __init__(self, url: str, key: str, keep_clients_key: bool, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ArgumentError(f"upstream={url!r}; expected an address, such as 'http://127.0.0.1:8000'")
        self._key, self._keep_clients_key = key, keep_clients_key
        self.client = httpx.AsyncClient(base_url=url.rstrip("/").removesuffix("/v1"), timeout=timeout)

    async def send(self, request: Request, body: bytes) -> httpx.Response:
        """Send a request on and return the response, whose body is not read yet.

        Raises:
            ApiError: 400, the path is invalid; 502, nothing answers; 504, the answer takes too long.
        """
        path: str = request.scope["path"]  # decoded, so that %2e is a dot
        if "\\" in path or any(segment in ("", ".", "..") for segment in path[1:].split("/")):
            raise refused(None, f"path {path!r}; expected no backslash and no empty, '.' or '..' segments")
        headers = end_to_end(request.headers)
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        elif not self._keep_clients_key:
            headers.pop("authorization", None)
        try:
            url = httpx.URL(path=request.url.path, query=request.url.query.encode())
        except httpx.InvalidURL as error:
            raise refused(None, f"the path cannot be passed on: {error}") from error
        self.client.cookies.clear()  # they belong to another client's answer
        built = self.client.build_request(request.method, url, headers=headers, content=body)
        with upstream_errors():
            return await self.client.send(built, stream=True)


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers without those of the connection."""
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    return {name: value for name, value in headers.items() if name.lower() not in NOT_PASSED_ON | named}


@contextmanager
def upstream_errors() -> Iterator[None]:
    """Turn errors of the connection to the upstream server into ``ApiError``."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise ApiError(504, "the upstream server takes too long", None, "upstream_timeout") from error
    except httpx.HTTPError as error:
        message = f"the upstream server does not answer ({type(error).__name__})"
        raise ApiError(502, message, None, "upstream_unreachable") from error


def create_proxy(upstream: Upstream, method: str | Method, settings: ServerSettings, metrics: Metrics) -> FastAPI:
    """The application of the proxy.

    Args:
        method: for requests that name none.

    Raises:
        MethodError: the method does more than arrange text.
        UnknownMethodError: no method has this name.
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

    app = base_app("ragbias proxy", settings, metrics, why_not_ready, lifespan)

    async def completion(request: Request) -> Response:
        """Arrange the documents and pass the request on."""
        body, report = arrange(await request.json(), PROMPTS[request.url.path], default, settings)
        fields = request.state.log_fields
        fields |= {"method_ran": report["method_ran"], "documents": report["n_found"], "source": report["source"]}
        metrics.answers.labels("upstream", report["method_ran"]).inc()
        return await _passed_on(request, upstream, json.dumps(body).encode(), report)

    async def other(request: Request) -> Response:
        """Pass the request on unchanged."""
        return await _passed_on(request, upstream, await request.body(), None)

    for path in PROMPTS:
        app.post(path)(completion)
    for path in GET_ROUTES:
        app.get(path)(other)
    for path in POST_ROUTES:
        app.post(f"/v1/{path}")(other)
    return app


def arrange(body: Any, prompt: str, default: Method, settings: ServerSettings) -> tuple[Json, Json]:
    """The body with its documents in the order of the method, without the fields of ragbias; and the report.

    Documents are arranged in the last text that holds them. Documents that no text holds are inserted before the user's
    last message.

    Args:
        prompt: field that holds the prompt: ``messages`` or ``prompt``.

    Raises:
        ApiError: a field is invalid, or there is no message for the documents.
    """
    if not isinstance(body, dict):
        raise refused(None, "the body is not a JSON object")
    try:
        fields = ArrangedFields.model_validate({name: body.pop(name, None) for name in ("documents", "ragbias")})
        method = client_method(fields.options.method, default)
        check_arranges_text(method)
        documents, texts = given_documents(fields, settings.max_documents), dict(_texts(body, prompt))
        path, found = _holder(texts, documents, settings)
        if documents and not path:
            path = _of_last_user(body, texts) if prompt == "messages" else ()
            if not path:
                raise nowhere_to_put(prompt)
            texts[path], inserted = with_documents(documents, texts[path])
            found = in_block(texts[path], inserted)
        text = texts.get(path, "")
        request = arranged(untokenised(text, found, method, settings.strip_numbering))
    except ValidationError as error:
        raise from_validation(error.errors()) from error
    except RagBiasError as error:
        raise from_library(error, prompt) from error
    check_found(request, fields.options.on_missing or settings.on_missing)
    if path and (documents or request.origin.flat.text != text):
        text = request.origin.flat.text
        body = _replaced(body, path, text.removesuffix(END) if prompt == "messages" else text)
    return body, request.report.as_dict()


def _texts(body: Json, prompt: str) -> Iterator[tuple[Path, str]]:
    """The texts that may hold documents, parts of messages included."""
    found = body.get(prompt)
    if prompt == "prompt":
        if not isinstance(found, str):
            raise refused(prompt, "prompt: expected a string")
        yield (prompt,), found
        return
    if not isinstance(found, list) or not found or not all(isinstance(message, dict) for message in found):
        raise refused(prompt, "messages: expected a list of messages")
    for at, message in enumerate(found):
        content = message.get("content")
        if message.get("role") not in ROLES:
            continue
        if isinstance(content, str):
            yield (prompt, at, "content"), content + END
        for inner, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield (prompt, at, "content", inner, "text"), part["text"] + END


def _holder(
    texts: dict[Path, str], documents: Sequence[Document] | None, settings: ServerSettings
) -> tuple[Path, Boundaries]:
    """The path of the last text that holds the documents, and their spans; an empty path if none does."""
    if documents == []:
        return (), locate("", documents=[])
    nothing = locate("")
    for path, text in reversed(texts.items()):
        if documents:
            if (known := in_prompt(text, documents)) is not None:
                return path, known
            continue
        found = locate(text, segmenter=settings.separator or None)
        if found.n_found > 1:
            return path, found
        nothing = found
    return (), nothing


def _of_last_user(body: Json, texts: dict[Path, str]) -> Path:
    """The path of the first text of the user's last message; empty if there is none."""
    last = max((at for at, message in enumerate(body["messages"]) if message.get("role") == "user"), default=None)
    return next((path for path in texts if path[1] == last), ())


def _replaced(value: Any, path: Path, text: str) -> Any:
    """A copy of nested lists and objects with one text replaced."""
    if not path:
        return text
    copy = value.copy()
    copy[path[0]] = _replaced(value[path[0]], path[1:], text)
    return copy


async def _passed_on(request: Request, upstream: Upstream, body: bytes, report: Json | None) -> Response:
    response = await unless_gone(request, upstream.send(request, body))
    headers = end_to_end(response.headers)
    if report is not None:
        headers |= report_headers(report)
    if "text/event-stream" in response.headers.get("content-type", ""):
        fields = request.state.log_fields
        return EventStream(_events(response, report, fields), response.aclose, fields, headers, response.status_code)
    async with aclosing(response):
        content = await unless_gone(request, _content(response))
    if report is not None and response.status_code == 200:
        try:
            content = json.dumps({**json.loads(content), "ragbias": report}).encode()
        except (ValueError, TypeError, RecursionError):  # not a JSON object
            return Response(content, 200, headers)
        headers["content-type"] = "application/json"
    return Response(content, response.status_code, headers)


async def _content(response: httpx.Response) -> bytes:
    content = bytearray()
    with upstream_errors():
        async for part in response.aiter_bytes():
            content += part
            if len(content) > MAX_ANSWER_BYTES:
                raise ApiError(502, "the upstream server's answer is too large", None, "upstream_too_large")
    return bytes(content)


async def _events(
    response: httpx.Response, report: Json | None, log_fields: dict[str, Any]
) -> AsyncGenerator[str | bytes, None]:
    """The upstream server's events; the one with the reason to finish gets the report."""
    rest = b""
    try:
        with upstream_errors():
            async for part in response.aiter_bytes():  # httpx's lines also end at U+2028, which JSON may hold
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield _with_report(line.removesuffix(b"\r"), report) + b"\n"
        yield rest
    except ApiError as error:
        log_fields["code"] = error.code
        yield f"\ndata: {json.dumps(error.as_dict())}\n\n"


def _with_report(line: bytes, report: Json | None) -> bytes:
    if report is None or not line.startswith(b"data: {") or b'"finish_reason"' not in line:
        return line
    try:
        event = json.loads(line[6:])
        ends = any(choice.get("finish_reason") for choice in event["choices"])
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return line
    return b"data: " + json.dumps({**event, "ragbias": report}).encode() if ends else line
