"""The proxy: arrange the documents of requests, and forward the requests to any OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from ragbias import limits, methods
from ragbias.boundaries import Boundaries, locate
from ragbias.display import json_type
from ragbias.frameworks import ChatDocument, chat_documents
from ragbias.frameworks.connection import server_address
from ragbias.frameworks.remote import END, check_orders_text, order_text, text_origin
from ragbias.methods import Method
from ragbias.serving import prompts
from ragbias.serving.answers import report_headers
from ragbias.serving.errors import ApiError, refused, translated
from ragbias.serving.schemas import ArrangedFields, Json
from ragbias.serving.server import EventStream, Metrics, base_app, unless_gone
from ragbias.serving.settings import ServerSettings

NOT_PASSED_ON = {  # headers of a single connection, or set by the proxy
    "connection", "content-encoding", "content-length", "date", "host", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "proxy-connection", "server", "te", "trailer", "transfer-encoding", "upgrade",
    "accept-encoding",
}  # fmt: skip
PROMPTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
# forwarded unchanged; other routes are a 404, to protect the upstream key
GET_ROUTES = ("/v1/models", "/v1/models/{name:path}")
POST_ROUTES = ("embeddings", "moderations", "rerank", "score", "responses", "audio/{kind}", "images/{kind}")
MAX_LINE_BYTES = 16 * 2**20  # of one line in an event stream

ROLES = ("system", "developer", "user", "tool")  # roles whose messages may contain documents


class PromptText(NamedTuple):
    """A text that may contain documents: ``container[key]`` of the body, and ``END`` after messages."""

    text: str
    container: Any
    key: str | int
    message: Json | None = None


class Upstream:
    """The server behind the proxy.

    Args:
        key: API key of the upstream server. If it is empty, ``keep_clients_key`` forwards the client's key.
        timeout: maximum number of seconds without a byte.
    """

    def __init__(self, url: str, key: str, keep_clients_key: bool, timeout: float) -> None:
        self._key, self._keep_clients_key = key, keep_clients_key
        self.client = upstream_client(server_address("upstream", url), timeout)

    async def send(self, request: Request, body: bytes) -> httpx.Response:
        """Forward a request. Return the response without reading its body."""
        path: str = request.scope["path"]  # already decoded, so %2e is a dot
        if set(path) & set("\\%;") or any(segment in ("", ".", "..") for segment in path[1:].split("/")):
            raise refused(None, f"path {path!r}; expected no backslash, '%' or ';', and no empty, '.' or '..' segments")
        headers = end_to_end(request.headers)
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        elif not self._keep_clients_key:
            headers.pop("authorization", None)
        try:
            url = httpx.URL(path=path, query=request.scope["query_string"])  # request.url contains the host header
        except httpx.InvalidURL as error:
            raise refused(None, f"the path cannot be passed on: {error}") from error
        self.client.cookies.clear()  # cookies of other clients
        built = self.client.build_request(request.method, url, headers=headers, content=body)
        with upstream_errors():
            response = await self.client.send(built, stream=True)
        if response.headers.get("content-encoding", "identity") != "identity":  # the size is unknown
            await response.aclose()
            raise ApiError(502, "the upstream server compresses answers; disable that", None, "upstream_compressed")
        return response


def upstream_client(address: str, timeout: float, key: str = "") -> httpx.AsyncClient:
    """Create a client for uncompressed answers. Only the server limits the number of connections."""
    connections = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    headers = {"accept-encoding": "identity", **({"authorization": f"Bearer {key}"} if key else {})}
    return httpx.AsyncClient(base_url=address, timeout=timeout, headers=headers, limits=connections)


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Remove hop-by-hop headers, which concern only one connection."""
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    return {name: value for name, value in headers.items() if name.lower() not in NOT_PASSED_ON | named}


@contextmanager
def upstream_errors() -> Iterator[None]:
    """Convert connection errors of the upstream server to ``ApiError``."""
    try:
        yield
    except httpx.TimeoutException as error:
        seconds = error.request.extensions["timeout"]["read"]
        message = f"the upstream server sent nothing for {seconds:g} seconds; the proxy's --timeout sets this limit"
        raise ApiError(504, message, None, "upstream_timeout") from error
    except httpx.HTTPError as error:
        message = f"the upstream server does not answer ({type(error).__name__})"
        raise ApiError(502, message, None, "upstream_unreachable") from error


def create_proxy(upstream: Upstream, method: str | Method, settings: ServerSettings, metrics: Metrics) -> FastAPI:
    """Create the application of the proxy. ``method`` is the default method."""
    default = methods.get(method)
    check_orders_text(default)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await upstream.client.aclose()

    async def why_not_ready() -> str:
        try:
            async with upstream.client.stream("GET", "/v1/models"):
                return ""
        except httpx.HTTPError:
            return "the upstream server does not answer"

    app = base_app("ragbias proxy", settings, metrics, why_not_ready, lifespan)

    async def completion(request: Request) -> Response:
        """Arrange the documents and forward the request."""
        kind = PROMPTS[request.scope["path"]]
        body, report = await run_in_threadpool(arrange, await request.json(), kind, default, settings)
        fields = request.state.log_fields
        fields |= {"method_ran": report["method_ran"], "documents": report["n_found"], "source": report["source"]}
        metrics.answers.labels("upstream", report["method_ran"]).inc()
        return await _passed_on(request, upstream, json.dumps(body).encode(), report)

    async def other(request: Request) -> Response:
        """Forward the request unchanged."""
        return await _passed_on(request, upstream, await request.body(), None)

    for path in PROMPTS:
        app.post(path)(completion)
    for path in GET_ROUTES:
        app.get(path)(other)
    for path in POST_ROUTES:
        app.post(f"/v1/{path}")(other)
    return app


def arrange(body: Any, prompt: str, default: Method, settings: ServerSettings) -> tuple[Json, Json]:
    """Arrange the documents of a body. Return the body without ragbias's fields, and the report.

    Documents are arranged in the last text that contains them. If no text contains them, they are inserted at the
    beginning of the user's last message.

    Args:
        prompt: name of the field with the prompt, ``messages`` or ``prompt``.
    """
    if not isinstance(body, dict):
        raise refused(None, f"the body is {json_type(body)}; expected an object")
    with translated(prompt):
        fields = ArrangedFields.model_validate({name: body.pop(name, None) for name in ("documents", "ragbias")})
        method = prompts.client_method(fields.options.method, default)
        check_orders_text(method)
        documents, texts = prompts.documents_of(fields, settings.max_documents), list(_texts(body, prompt))
        holder, boundaries = _holder(texts, documents, settings)
        if documents and holder is None:
            prompts.check_copies(documents, (text.text.removesuffix(END) for text in texts))
            messages = body[prompt] if prompt == "messages" else []
            last = next((message for message in reversed(messages) if message.get("role") == "user"), body)
            holder = next((text for text in texts if text.message is last), None)
            if holder is None:
                raise prompts.nowhere_to_put(prompt, "\n".join(text.text for text in texts), documents)
            text, boundaries = prompts.insert_documents(documents, holder.text)
            holder = holder._replace(text=text)
        flat = holder.text if holder else ""
        request = order_text(text_origin(flat, boundaries, method, settings.strip_numbering))
    prompts.check_found(request, fields.options.on_missing or settings.on_missing)
    if holder:
        holder.container[holder.key] = request.origin.flat.text.removesuffix(END if holder.message else "")
    return body, request.report.as_dict()


def _texts(body: Json, prompt: str) -> Iterator[PromptText]:
    """Yield texts that may contain documents, including text parts of messages."""
    value = body.get(prompt)
    if prompt == "prompt":
        if not isinstance(value, str):
            raise refused(prompt, f"prompt: expected a string, not {json_type(value)}")
        yield PromptText(value, body, prompt)
        return
    if not isinstance(value, list) or not value:
        raise refused(prompt, f"messages: expected a list of at least one message, not {json_type(value)}")
    for index, message in enumerate(value):
        if not isinstance(message, dict):
            raise refused(prompt, f"messages[{index}]: expected an object, not {json_type(message)}")
    for message in value:
        content = message.get("content")
        if message.get("role") not in ROLES:
            continue
        if isinstance(content, str):
            yield PromptText(content + END, message, "content", message)
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield PromptText(part["text"] + END, part, "text", message)


def _holder(
    texts: Sequence[PromptText], documents: Sequence[ChatDocument] | None, settings: ServerSettings
) -> tuple[PromptText | None, Boundaries]:
    """Return the last text that contains the documents, or None, and the documents' spans."""
    if documents == []:
        return None, locate("", documents=[])
    boundaries = locate("")
    for text in reversed(texts):
        if documents:
            if (verbatim := chat_documents.locate_all(text.text, documents)) is not None:
                return text, verbatim
            continue
        boundaries = settings.located(text.text)
        if boundaries.n_found > 1:
            return text, boundaries
    return None, boundaries


async def _passed_on(request: Request, upstream: Upstream, body: bytes, report: Json | None) -> Response:
    response = await unless_gone(request, upstream.send(request, body))
    headers = end_to_end(response.headers)
    if report is not None:
        headers |= report_headers(report)
    if "text/event-stream" in response.headers.get("content-type", ""):
        fields = request.state.log_fields
        return EventStream(_events(response, report, fields), response.aclose, headers, response.status_code)
    async with aclosing(response):
        content = await unless_gone(request, whole_body(response))
    if report is not None and response.status_code == 200:
        with suppress(ValueError, TypeError, RecursionError):  # raised unless it is a JSON object
            content = json.dumps({**json.loads(content), "ragbias": report}).encode()
            headers["content-type"] = "application/json"
    return Response(content, response.status_code, headers)


async def whole_body(response: httpx.Response) -> bytes:
    """Read a body of at most ``limits.ANSWER_BYTES``."""
    content = bytearray()
    with upstream_errors():
        async for part in response.aiter_bytes():
            content += part
            _check_size(content, limits.ANSWER_BYTES)
    return bytes(content)


async def body_lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a body, including line ends."""
    rest = b""
    with upstream_errors():
        async for part in response.aiter_bytes():  # httpx's lines also end at U+2028, which is valid in JSON
            *lines, rest = (rest + part).split(b"\n")
            _check_size(rest, MAX_LINE_BYTES)
            for line in lines:
                yield line + b"\n"
    yield rest


def _check_size(content: bytes | bytearray, limit: int) -> None:
    if len(content) > limit:
        message = f"an answer or event of the upstream server exceeds {limit:,} bytes; request a shorter answer"
        raise ApiError(502, message, None, "upstream_too_large")


async def _events(
    response: httpx.Response, report: Json | None, log_fields: dict[str, Any]
) -> AsyncGenerator[str | bytes, None]:
    """Yield the upstream server's events. Add the report to the event with the finish reason."""
    try:
        async with aclosing(body_lines(response)) as lines:
            async for line in lines:
                yield _with_report(line, report)
    except ApiError as error:
        log_fields["code"] = error.code
        yield f"\n{error.event()}"


def _with_report(line: bytes, report: Json | None) -> bytes:
    if report is None or not line.startswith(b"data: {") or b'"finish_reason"' not in line:
        return line
    with suppress(ValueError, KeyError, AttributeError, TypeError, RecursionError):
        event = json.loads(line[6:])
        if any(choice.get("finish_reason") for choice in event["choices"]):
            return b"data: " + json.dumps({**event, "ragbias": report}).encode() + b"\n"
    return line
