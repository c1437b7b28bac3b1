"""The proxy: reorder the documents in requests, and forward the requests to any OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NamedTuple

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from ragbias import methods
from ragbias.boundaries import Boundaries, locate
from ragbias.display import json_type
from ragbias.frameworks.chat_documents import ChatDocument
from ragbias.frameworks.remote import END
from ragbias.generation.preparing import split_located
from ragbias.generation.text_orders import check_orders_text, order_text
from ragbias.methods import Method
from ragbias.serving import prompts
from ragbias.serving.answers import report_headers
from ragbias.serving.errors import ApiError, bad_request, translate_errors
from ragbias.serving.schemas import ArrangedFields, Json
from ragbias.serving.server import EventStream, Metrics, base_app, cancel_on_disconnect
from ragbias.serving.settings import ProxySettings, UpstreamModel
from ragbias.serving.upstream import body_lines, read_body, upstream_client, upstream_errors

NOT_FORWARDED = {  # headers that concern one connection, or that the proxy sets
    "connection", "content-encoding", "content-length", "date", "host", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "proxy-connection", "server", "te", "trailer", "transfer-encoding", "upgrade",
    "accept-encoding",
}  # fmt: skip
PROMPT_FIELDS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
# forwarded unchanged; other routes are a 404, to protect the upstream key
GET_ROUTES = ("/v1/models", "/v1/models/{name:path}")
POST_ROUTES = ("embeddings", "moderations", "rerank", "score", "responses", "audio/{kind}", "images/{kind}")
ROLES = ("system", "developer", "user", "tool")  # roles whose messages may contain documents
DocumentsProxy = Callable[[UpstreamModel, ProxySettings, Metrics], tuple[FastAPI, Callable[[], None]]]
"""The entry point ``documents`` of the group ``ragbias.proxies``. It returns an application, and a function that
connects the application to the upstream server."""


class PromptText(NamedTuple):
    """A text in a request body that may contain documents. ``container[key]`` is its place in the body."""

    text: str  # with ``END`` appended, if it belongs to a message
    container: Json
    key: str
    message: Json | None = None  # None for the field ``prompt``


class Upstream:
    """The server behind the proxy. Its API key is ``upstream.key``, or the client's key if the proxy needs no keys."""

    def __init__(self, upstream: UpstreamModel, settings: ProxySettings) -> None:
        self._key = upstream.key
        self._keep_clients_key = not settings.api_key
        self.client = upstream_client(upstream.url, upstream.timeout)

    async def send(self, request: Request, body: bytes) -> httpx.Response:
        """Forward a request with a new body. Return the response, whose body has not been read yet."""
        path: str = request.scope["path"]  # decoded: %2e is a dot here
        if set(path) & set("\\%;") or any(segment in ("", ".", "..") for segment in path[1:].split("/")):
            raise bad_request(None, f"path {path!r}; expected no backslash, '%', ';', or empty, '.' or '..' segments")
        headers = end_to_end(request.headers)
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        elif not self._keep_clients_key:
            headers.pop("authorization", None)
        try:
            url = httpx.URL(path=path, query=request.scope["query_string"])  # request.url contains the host header
        except httpx.InvalidURL as error:
            raise bad_request(None, f"the path cannot be forwarded: {error}") from error
        self.client.cookies.clear()  # drop cookies of other clients
        built = self.client.build_request(request.method, url, headers=headers, content=body)
        with upstream_errors():
            response = await self.client.send(built, stream=True)
        if response.headers.get("content-encoding", "identity") != "identity":  # the size is unknown
            await response.aclose()
            raise ApiError(502, "the upstream server must not compress answers", None, "upstream_compressed")
        return response


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without hop-by-hop headers, which concern only one connection."""
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    return {name: value for name, value in headers.items() if name.lower() not in NOT_FORWARDED | named}


def create_proxy(upstream: UpstreamModel, settings: ProxySettings, metrics: Metrics) -> FastAPI:
    """Create the application of the proxy, for methods that only reorder documents."""
    default = methods.get(upstream.method)
    server = Upstream(upstream, settings)
    check_orders_text(default)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await server.client.aclose()

    async def why_not_ready() -> str:
        try:
            async with server.client.stream("GET", "/v1/models"):
                return ""
        except httpx.HTTPError:
            return "the upstream server does not answer"

    app = base_app("ragbias proxy", settings, metrics, why_not_ready, lifespan)

    async def completion(request: Request) -> Response:
        """Reorder the documents and forward the request."""
        kind = PROMPT_FIELDS[request.scope["path"]]
        body, report = await run_in_threadpool(arrange, await request.json(), kind, default, settings)
        fields = request.state.log_fields
        fields |= {"method_ran": report["method_ran"], "documents": report["n_found"], "source": report["source"]}
        metrics.answers.labels("upstream", report["method_ran"]).inc()
        return await _forward(request, server, json.dumps(body).encode(), report)

    async def other(request: Request) -> Response:
        """Forward the request unchanged."""
        return await _forward(request, server, await request.body(), None)

    for path in PROMPT_FIELDS:
        app.post(path)(completion)
    for path in GET_ROUTES:
        app.get(path)(other)
    for path in POST_ROUTES:
        app.post(f"/v1/{path}")(other)
    return app


def arrange(body: Any, prompt: str, default: Method, settings: ProxySettings) -> tuple[Json, Json]:
    """Reorder the documents of a request body. Return the body for the upstream server, and the report.

    The documents are reordered in the last text that contains all of them. If no text contains them, they are inserted
    at the beginning of the user's last message.

    Args:
        body: the parsed JSON body. The fields ``documents`` and ``ragbias`` are removed from it.
        prompt: name of the field with the prompt: ``messages`` or ``prompt``.
        default: method of requests that name none.
    """
    if not isinstance(body, dict):
        raise bad_request(None, f"the body is {json_type(body)}; expected an object")
    with translate_errors(prompt):
        fields = ArrangedFields.model_validate({name: body.pop(name, None) for name in ("documents", "ragbias")})
        method = prompts.client_method(fields.options.method, default)
        check_orders_text(method)
        documents = prompts.documents_of(fields, settings.max_documents)
        texts = list(_texts(body, prompt))
        holder, boundaries = _find_text_with_documents(texts, documents, settings)
        if documents and holder is None:
            holder, boundaries = _insert_documents(body, prompt, texts, documents)
        flat = holder.text if holder else ""
        request = order_text(split_located(flat, boundaries, settings.strip_numbering), method)
    prompts.check_documents_found(request, fields.options.on_missing or settings.on_missing)
    if holder:
        holder.container[holder.key] = request.prompt.flat.text.removesuffix(END if holder.message else "")
    return body, request.report.as_dict()


def _texts(body: Json, prompt: str) -> Iterator[PromptText]:
    """Yield the texts of a body that may contain documents: the prompt, or contents and text parts of messages."""
    value = body.get(prompt)
    if prompt == "prompt":
        if not isinstance(value, str):
            raise bad_request(prompt, f"prompt: expected a string, not {json_type(value)}")
        yield PromptText(value, body, prompt)
        return
    if not isinstance(value, list) or not value:
        raise bad_request(prompt, f"messages: expected a list of at least one message, not {json_type(value)}")
    for index, message in enumerate(value):
        if not isinstance(message, dict):
            raise bad_request(prompt, f"messages[{index}]: expected an object, not {json_type(message)}")
    for message in value:
        content = message.get("content")
        if message.get("role") not in ROLES:
            continue
        if isinstance(content, str):
            yield PromptText(content + END, message, "content", message)
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield PromptText(part["text"] + END, part, "text", message)


def _find_text_with_documents(
    texts: Sequence[PromptText], documents: Sequence[ChatDocument] | None, settings: ProxySettings
) -> tuple[PromptText | None, Boundaries]:
    """Return the last text that contains all documents, or None, and the boundaries of the documents."""
    boundaries = locate("", documents=[] if documents == [] else None)
    for text in reversed(texts):
        found = prompts.find_documents(text.text, documents, settings)
        if found is None:
            continue
        boundaries = found
        if documents or found.n_found > 1:
            return text, found
    return None, boundaries


def _insert_documents(
    body: Json, prompt: str, texts: Sequence[PromptText], documents: Sequence[ChatDocument]
) -> tuple[PromptText, Boundaries]:
    """Insert the documents at the beginning of the user's last message. Raise a 400 if there is no such message."""
    prompts.check_copies(documents, (text.text.removesuffix(END) for text in texts))
    messages = body[prompt] if prompt == "messages" else []
    last = next((message for message in reversed(messages) if message.get("role") == "user"), body)
    holder = next((text for text in texts if text.message is last), None)
    if holder is None:
        raise prompts.missing_documents(prompt, "\n".join(text.text for text in texts), documents)
    question = holder.text
    inserted = [str(document).lstrip() for document in documents]
    text, boundaries = prompts.locate_inserted(lambda texts: prompts.SEPARATOR.join([*texts, question]), inserted)
    return holder._replace(text=text), boundaries


async def _forward(request: Request, upstream: Upstream, body: bytes, report: Json | None) -> Response:
    response = await cancel_on_disconnect(request, upstream.send(request, body))
    headers = end_to_end(response.headers)
    if report is not None:
        headers |= report_headers(report)
    if "text/event-stream" in response.headers.get("content-type", ""):
        fields = request.state.log_fields
        return EventStream(_events(response, report, fields), response.aclose, headers, response.status_code)
    async with aclosing(response):
        content = await cancel_on_disconnect(request, read_body(response))
    if report is not None and response.status_code == 200:
        with suppress(ValueError, TypeError, RecursionError):  # raised if the content is not a JSON object
            content = json.dumps({**json.loads(content), "ragbias": report}).encode()
            headers["content-type"] = "application/json"
    return Response(content, response.status_code, headers)


async def _events(
    response: httpx.Response, report: Json | None, log_fields: dict[str, Any]
) -> AsyncGenerator[str | bytes, None]:
    """Yield the upstream server's events. The event with the finish reason also gets the report."""
    try:
        async with aclosing(body_lines(response)) as lines:
            async for line in lines:
                yield _with_report(line, report)
    except ApiError as error:
        log_fields["code"] = error.code
        yield f"\n{error.as_sse()}"


def _with_report(line: bytes, report: Json | None) -> bytes:
    if report is None or not line.startswith(b"data: {") or b'"finish_reason"' not in line:
        return line
    with suppress(ValueError, KeyError, AttributeError, TypeError, RecursionError):
        event = json.loads(line[6:])
        if any(choice.get("finish_reason") for choice in event["choices"]):
            return b"data: " + json.dumps({**event, "ragbias": report}).encode() + b"\n"
    return line
