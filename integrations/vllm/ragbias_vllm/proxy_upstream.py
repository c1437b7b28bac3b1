"""The vLLM server behind the proxy: completions of token ids, and the documents that its connector has stored."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from array import array
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

import httpx
from prometheus_client import Counter

from ragbias.errors import ArgumentError, ServerError
from ragbias.serving.errors import ApiError
from ragbias.serving.proxy import MAX_ANSWER_BYTES, MAX_LINE_BYTES, upstream_errors
from ragbias.serving.schemas import Json
from ragbias.serving.server import Metrics, log
from ragbias_vllm.plans import Plan

COMPLETIONS = "/v1/completions"
STORED_AT_ONCE = 16  # store requests at the same time; more would delay answers, as vLLM serves in order
MOST_WAITING = 4_000  # documents that wait to be stored
KNOWN = 500_000  # documents that the proxy remembers as stored, about 100 MB
LONG_PREFIX = 256  # tokens; only one store request computes a longer prefix, the others wait for it
SECONDS_BETWEEN_CHECKS = 2.0
SECONDS_FOR_MODELS = 10.0
NO_CONNECTOR = (
    "the upstream server does not run ragbias's connector; start vLLM with --kv-transfer-config, as "
    "docs/how-to/vllm.md shows"
)
STORE_FULL = "the upstream server cannot store documents: its folder is full or not writable; see its log"
TOO_MANY = "too many documents wait to be stored in the upstream server; try again later"


class UpstreamFailedError(ApiError):
    """A request that failed inside the upstream server before its first token; storing its documents may help."""

    def __init__(self, message: str) -> None:
        super().__init__(502, message, None, "upstream_failed")


class Vllm:
    """A client of one vLLM server.

    Args:
        key: API key of the server; empty if the server needs none.
        timeout: maximum number of seconds without a byte.
    """

    def __init__(self, url: str, key: str, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ArgumentError(f"upstream={url!r}; expected an address, such as 'http://127.0.0.1:8000'")
        self.address = url.rstrip("/").removesuffix("/v1")
        self._headers = {"accept-encoding": "identity", **({"authorization": f"Bearer {key}"} if key else {})}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self._client = httpx.AsyncClient(base_url=self.address, timeout=timeout, headers=self._headers, limits=limits)

    def models(self) -> list[Json]:
        """Return the models of the server. Wait while the server does not accept connections."""
        waited = False
        while True:
            try:
                response = httpx.get(f"{self.address}/v1/models", headers=self._headers, timeout=SECONDS_FOR_MODELS)
                break
            except httpx.HTTPError as error:
                if not waited:
                    log("waiting for the upstream server", upstream=self.address, reason=type(error).__name__)
                waited = True
                time.sleep(1)
        try:
            return list(response.raise_for_status().json()["data"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            reason = "it needs --upstream-key" if response.status_code in (401, 403) else f"{type(error).__name__}"
            raise ServerError(f"{self.address}/v1/models does not list models ({reason})") from error

    async def is_healthy(self) -> bool:
        """Whether the server answers and its engine runs."""
        try:
            return (await self._client.get("/health", timeout=SECONDS_FOR_MODELS)).status_code == 200
        except httpx.HTTPError:
            return False

    async def answers(self, body: Json) -> AsyncGenerator[Json, None]:
        """Yield the whole answer, or the events of a stream. Closing the generator aborts the request.

        Raises:
            UpstreamFailedError: the engine failed; in a stream, this may come after events.
            ApiError: the server cannot be reached or refuses the request.
        """
        built = self._client.build_request("POST", COMPLETIONS, json=body)
        with upstream_errors():
            response = await self._client.send(built, stream=True)
            try:
                if response.status_code != 200 or not body.get("stream"):
                    yield _checked(response.status_code, await _content(response))
                    return
                async for event in _events(response):
                    yield _checked(200, event)
            finally:
                await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


async def _content(response: httpx.Response) -> bytes:
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        _check_size(content, MAX_ANSWER_BYTES)
    return bytes(content)


async def _events(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for part in response.aiter_bytes():  # httpx's lines also end at U+2028, which is valid in JSON
        *lines, rest = (rest + part).split(b"\n")
        _check_size(rest, MAX_LINE_BYTES)
        for line in lines:
            if line.startswith(b"data: {"):
                yield line[6:]


def _check_size(content: bytes | bytearray, limit: int) -> None:
    if len(content) > limit:
        raise ApiError(502, "the upstream server's answer is too large", None, "upstream_too_large")


def _checked(status: int, content: bytes) -> Json:
    """Parse a body or an event. Raise the error that it describes."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    if status == 200 and isinstance(body, dict) and "error" not in body:
        return body
    error = body.get("error") if isinstance(body, dict) else None
    described = error if isinstance(error, dict) else {}
    message = str(described.get("message") or "no reason given")
    code = described.get("code")
    status = code if status == 200 and isinstance(code, int) else status
    if status in (401, 403):
        raise ApiError(502, "the upstream server rejects the proxy's key; see --upstream-key", None, "upstream_key")
    if 400 <= status < 500:
        raise ApiError(status, f"the upstream server refuses the request: {message:.500}", None, "upstream_refused")
    if status == 503:
        raise ApiError(503, "the upstream server is overloaded or starting", None, "upstream_busy", retry_after=5)
    raise UpstreamFailedError(f"the upstream server failed: {message:.500}")


def parameters_of(plan: Plan) -> Json:
    """Return the fields of a request to vLLM that carry a plan."""
    transfer: Json = {"method": plan.method, "lengths": list(plan.lengths), "scope": plan.scope}
    if plan.store:
        transfer["store"] = True
    return {"kv_transfer_params": {"ragbias": transfer}, "cache_salt": plan.cache_salt}


@dataclass(frozen=True)
class Segments:
    """The documents of one prompt, in the order in which the upstream server gets them.

    Attributes:
        method: the method as text, for the connector.
        prefix, documents: token ids.
        scope: digest of the tenant; entries of other scopes are never used.
        model: name of the upstream model without reader.
    """

    method: str
    prefix: Sequence[int]
    documents: Sequence[Sequence[int]]
    scope: str
    model: str

    def plan(self, document: Sequence[int] | None = None) -> Plan:
        """Return the plan to answer, or to store one document."""
        documents = self.documents if document is None else [document]
        lengths = (len(self.prefix), *map(len, documents))
        return Plan(document is not None, self.method, lengths, self.scope)

    def keys(self) -> list[bytes]:
        """Return a digest of each document with all that its stored states depend on, after that of the prefix."""
        about = json.dumps([self.model, self.scope]).encode()
        prefix = hashlib.sha256(about + array("q", self.prefix).tobytes()).digest()
        return [prefix, *(hashlib.sha256(prefix + array("q", each).tobytes()).digest() for each in self.documents)]


class StoredDocuments:
    """Store the documents of prompts in the upstream server, each once, and remember which are stored."""

    def __init__(self, upstream: Vllm, metrics: Metrics) -> None:
        self._upstream = upstream
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[bool]] = {}  # result: whether the document was computed
        self._slots = asyncio.Semaphore(STORED_AT_ONCE)
        self._stored = Counter(
            "ragbias_store_requests", "Documents sent to be stored.", ["computed"], registry=metrics.registry
        )

    def forget(self, keys: Sequence[bytes] | None = None) -> None:
        """Forget that these documents are stored; all documents if ``keys`` is None."""
        for key in list(self._known) if keys is None else keys:
            self._known.pop(key, None)

    async def store(self, segments: Segments) -> int:
        """Store the documents that are not known to be stored.

        Returns:
            the number of tokens of prefix and documents that were stored before.
        """
        prefix, *keys = segments.keys()
        prefix_known = prefix in self._known
        missing = {key: each for key, each in zip(keys, segments.documents, strict=True) if key not in self._known}
        if self._running and len(self._running) + len(missing) > MOST_WAITING:
            raise ApiError(429, TOO_MANY, None, "too_many_documents", retry_after=5)
        computed: dict[bytes, bool] = {}
        waiting = list(missing)
        if not prefix_known and len(segments.prefix) > LONG_PREFIX and len(waiting) > 1:
            first = waiting.pop(0)
            computed[first] = await self._stored_once(first, segments, missing[first])
        results = await asyncio.gather(*(self._stored_once(key, segments, missing[key]) for key in waiting))
        computed.update(zip(waiting, results, strict=True))
        for key in (prefix, *keys):
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)
        reused = [len(each) for key, each in zip(keys, segments.documents, strict=True) if not computed.get(key)]
        return sum(reused) + (len(segments.prefix) if prefix_known or reused else 0)

    async def _stored_once(self, key: bytes, segments: Segments, document: Sequence[int]) -> bool:
        """Store a document, or wait for another request that stores it. A client that leaves does not stop it."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._store(segments, document))
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: bytes, task: asyncio.Task[bool]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, because the client that waited for it may have left

    async def _store(self, segments: Segments, document: Sequence[int]) -> bool:
        body = {
            "model": segments.model,
            "prompt": [*segments.prefix, *document, document[-1]],
            "max_tokens": 1,
            "temperature": 0,
            **parameters_of(segments.plan(document)),
        }
        async with self._slots:
            answers = [answer async for answer in self._upstream.answers(body)]
        transferred = answers[0].get("kv_transfer_params")
        outcome = transferred.get("ragbias") if isinstance(transferred, Mapping) else None
        if not isinstance(outcome, Mapping):
            raise ApiError(502, NO_CONNECTOR, None, "no_connector")
        computed = bool(outcome.get("stored"))
        if not outcome.get("available"):
            raise ApiError(503, STORE_FULL, None, "store_unavailable", retry_after=5)
        self._stored.labels(str(computed).lower()).inc()
        return computed
