"""Send prompts as token ids to the vLLM server behind the proxy, and store documents in its connector."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from functools import partial
from itertools import chain

import httpx
from prometheus_client import Counter

from ragbias.errors import ServerError
from ragbias.serving import ApiError, Json, Metrics, body_lines, log, read_body, upstream_client, upstream_errors
from ragbias_vllm.joint_documents import JointDocuments
from ragbias_vllm.plans import Plan

COMPLETIONS = "/v1/completions"
ATTEMPTS = 3  # maximum number of attempts if stored documents are lost
MAX_CONCURRENT_STORES = 16  # more would delay answers, because vLLM serves requests in order
MAX_WAITING = 4_000  # queued documents per tenant
MAX_KNOWN = 500_000  # stored documents that the proxy remembers, about 100 MB
LONG_PREFIX = 256  # tokens; with a longer prefix, the first document is stored alone, and the others reuse the prefix
SECONDS_BETWEEN_CHECKS = 2.0
SECONDS_FOR_MODELS = 10.0
NO_CONNECTOR = (
    "the upstream server does not run ragbias's connector, or does not report cached tokens; start vLLM with "
    "--kv-transfer-config and --enable-prompt-tokens-details, as docs/how-to/vllm.md shows"
)
NOT_LOADED = "the upstream server answered without the stored documents"
NOT_FOUND = (
    "if it cannot find documents that the proxy computed, check that both use the same folder, weights and dtype, and "
    'that the connector has "portable": true'
)
STORE_FULL = "the upstream server cannot store documents: its folder is full or not writable; see its log"
TOO_MANY = "too many documents wait to be stored in the upstream server; try again later"


class UpstreamFailedError(ApiError):
    """A request failed in the upstream server. Storing the documents again may help."""

    def __init__(self, message: str) -> None:
        super().__init__(502, message, None, "upstream_failed")


class Vllm:
    """A client of one vLLM server.

    Args:
        key: API key of the server, or "" if the server needs no key.
        timeout: maximum number of seconds to wait for the next byte.
    """

    def __init__(self, url: str, key: str, timeout: float) -> None:
        self._client = upstream_client(url, timeout, key)
        public = str(self._client.base_url.copy_with(userinfo=b""))  # without the password
        self._address_to_log = public.rstrip("/")

    def models(self) -> list[Json]:
        """Return the models of the server. Wait until the server accepts connections."""
        url = self._client.base_url.join("v1/models")
        waited = False
        while True:
            try:
                response = httpx.get(url, headers=self._client.headers, timeout=SECONDS_FOR_MODELS)
                break
            except httpx.HTTPError as error:
                if not waited:
                    log("waiting for the upstream server", upstream=self._address_to_log, reason=type(error).__name__)
                waited = True
                time.sleep(1)
        try:
            return list(response.raise_for_status().json()["data"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            reason = "it needs --upstream-key" if response.status_code in (401, 403) else f"{type(error).__name__}"
            raise ServerError(f"{self._address_to_log}/v1/models does not list models ({reason})") from error

    async def is_healthy(self) -> bool:
        """Whether the server answers and its engine runs."""
        try:
            return (await self._client.get("/health", timeout=SECONDS_FOR_MODELS)).status_code == 200
        except httpx.HTTPError:
            return False

    async def answers(self, body: Json) -> AsyncGenerator[Json, None]:
        """Yield the complete answer, or the events of a stream. Closing the generator aborts the request.

        Raises:
            UpstreamFailedError: the engine failed. A stream may have yielded events before.
            ApiError: the server cannot be reached, or rejects the request.
        """
        built = self._client.build_request("POST", COMPLETIONS, json=body)
        with upstream_errors():
            response = await self._client.send(built, stream=True)
            try:
                if response.status_code != 200 or not body.get("stream"):
                    yield _parse_answer(response.status_code, await read_body(response))
                    return
                async with aclosing(body_lines(response)) as lines:
                    async for line in lines:
                        if line.startswith(b"data: {") and line.endswith(b"\n"):
                            yield _parse_answer(200, line[6:])
            finally:
                await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _parse_answer(status: int, content: bytes) -> Json:
    """Parse a response body or an event of a stream. Raise the error that it contains, if any."""
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


def parameters_of(plan: Plan, ids: Sequence[int]) -> Json:
    """Return the fields of a request to vLLM for a plan. ``ids`` are the prompt's tokens."""
    transfer: Json = {"method": plan.method, "lengths": list(plan.lengths), "scope": plan.scope}
    if plan.store:
        transfer["store"] = True
    return {"kv_transfer_params": {"ragbias": transfer}, "cache_salt": plan.cache_salt(ids)}


@dataclass(frozen=True)
class Segments:
    """The prefix and the documents of one prompt, in the order in which vLLM gets them.

    Attributes:
        method: the method as text, for the connector.
        prefix, documents: token ids.
        scope: digest of the tenant. Stored documents are shared only within a scope.
        model: name of the upstream model, without a reader.
        joint: object that computes all documents together in the proxy; None if vLLM computes each document alone.
    """

    method: str
    prefix: Sequence[int]
    documents: Sequence[Sequence[int]]
    scope: str
    model: str
    joint: JointDocuments | None = None

    @property
    def tenant(self) -> str:
        """The first half of the scope, which identifies the tenant; see ``ragbias.serving.app.cache_salt``."""
        return self.scope[: len(self.scope) // 2]

    @property
    def ids(self) -> list[int]:
        """The token ids of prefix and documents together."""
        return [*self.prefix, *chain.from_iterable(self.documents)]

    def plan(self, document: Sequence[int] | None = None) -> Plan:
        """Return the plan to answer with all documents, or the plan to store ``document`` if it is given."""
        documents = self.documents if document is None else [document]
        lengths = (len(self.prefix), *map(len, documents))
        return Plan(document is not None, self.method, lengths, self.scope)

    def keys(self) -> list[bytes]:
        """Return identifiers of the prefix and of each document, in this order."""
        about = json.dumps([self.model, self.scope]).encode()
        prefix = hashlib.sha256(about + array("q", self.prefix).tobytes()).digest()
        return [prefix, *(hashlib.sha256(prefix + array("q", ids).tobytes()).digest() for ids in self.documents)]


@dataclass(eq=False)
class _Job:
    """A job that computes and stores one document, or all documents of a prompt."""

    compute: Callable[[], Awaitable[int]]
    stored: asyncio.Future[int]  # the result of ``compute``
    keys: Sequence[bytes]  # identifiers of the prefix and documents that the job stores
    waiting: int = 0  # number of requests that wait for it


class StoredDocuments:
    """Store each document once in the upstream server, and remember which documents are stored.

    Tenants take turns. A queued document is dropped when no request waits for it any more.
    """

    def __init__(self, upstream: Vllm, metrics: Metrics) -> None:
        self._upstream = upstream
        self._known: dict[bytes, None] = {}  # the oldest first
        self._generation = 0  # number of calls of ``forget``
        self._reported = False  # whether the connector in the upstream server has answered
        self._jobs: dict[bytes, _Job] = {}  # queued or sent
        self._queues: dict[str, dict[bytes, _Job]] = {}  # by tenant; the first tenant has the next turn
        self._sent: set[asyncio.Task[None]] = set()
        counter = partial(Counter, registry=metrics.registry)
        self._stored = counter("ragbias_store_requests", "Documents sent to be stored.", ["computed"])
        self._retries = counter("ragbias_upstream_retries", "Answers requested again after storing documents.")

    async def answers(
        self, body: Json, segments: Segments | None, running: Callable[[], AbstractAsyncContextManager[None]]
    ) -> AsyncGenerator[tuple[int, Json], None]:
        """Store the documents. Yield vLLM's answer or events, each with the number of tokens that were already stored.

        If an answer fails before its first token, the documents are stored again, and the request is repeated.

        Raises:
            UpstreamFailedError: all attempts failed, or documents were not loaded. Streams may raise this at their end.
        """
        for attempt in range(1, ATTEMPTS + 1):
            started = False
            stored = 0
            try:
                if segments:
                    stored = await self.store(segments)
                async with running(), aclosing(self._upstream.answers(body)) as answers:
                    async for answer in answers:
                        if segments and answer.get("usage"):  # a complete answer, or the last event of a stream
                            outcome, cached = _report_of(answer)
                            loaded = cached if body["stream"] else outcome.get("loaded")
                            if (loaded or 0) < segments.plan().end:
                                raise UpstreamFailedError(NOT_LOADED)
                        started = True
                        yield stored, answer
                return
            except UpstreamFailedError as error:
                if segments:
                    self.forget(segments.keys())
                if started or not segments or attempt == ATTEMPTS:
                    if segments and segments.joint and not started:
                        raise UpstreamFailedError(f"{error}; {NOT_FOUND}") from error
                    raise
                self._retries.inc()

    def forget(self, keys: Sequence[bytes] | None = None) -> None:
        """Mark the documents with these keys as not stored; None marks all documents.

        Jobs that are running now will not mark their documents as stored when they end.
        """
        self._generation += 1
        self._reported = self._reported and keys is not None
        for key in list(self._known) if keys is None else keys:
            self._known.pop(key, None)

    async def store(self, segments: Segments) -> int:
        """Store the documents that are not stored yet. Return the number of tokens that were already stored."""
        prefix, *keys = segments.keys()
        prefix_known = prefix in self._known
        missing = {key: ids for key, ids in zip(keys, segments.documents, strict=True) if key not in self._known}
        tenant = segments.tenant
        n_queued = len(self._queues.get(tenant, ()))
        n_new = 1 if segments.joint else len(missing)
        if n_queued and n_queued + n_new > MAX_WAITING:
            raise ApiError(429, TOO_MANY, None, "too_many_waiting", retry_after=5)
        if segments.joint:
            plan, ids = segments.plan(), segments.ids
            if parts := await asyncio.to_thread(segments.joint.missing, plan, ids):
                await self._run_once(b"".join([prefix, *keys]), (), tenant, partial(segments.joint.store, plan, ids))
            if not self._reported:  # otherwise a stream could fail after its text
                await self._report(segments.model, plan, ids)
            return plan.end - sum(part.end - part.begin for part in parts)

        async def store_document(key: bytes) -> int:
            return await self._run_once(key, (prefix, key), tenant, partial(self._store, segments, missing[key]))

        waiting, computed = list(missing), dict[bytes, int]()
        if not prefix_known and len(segments.prefix) > LONG_PREFIX and len(waiting) > 1:
            first = waiting.pop(0)
            computed[first] = await store_document(first)
        tasks = [asyncio.create_task(store_document(key)) for key in waiting]
        try:
            computed.update(zip(waiting, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:  # after an error, the other documents are not needed
                task.cancel()
        reused = [len(ids) for key, ids in zip(keys, segments.documents, strict=True) if not computed.get(key)]
        return sum(reused) + (len(segments.prefix) if prefix_known or reused else 0)

    async def _run_once(
        self, key: bytes, keys: Sequence[bytes], tenant: str, compute: Callable[[], Awaitable[int]]
    ) -> int:
        """Return the result of ``compute``. Requests with the same ``key`` share one call of ``compute``.

        ``keys`` are the identifiers to remember as stored afterwards.
        """
        job = self._jobs.get(key)
        if job is None:
            job = _Job(compute, asyncio.get_running_loop().create_future(), keys)
            self._jobs[key] = job
            self._queues.setdefault(tenant, {})[key] = job
            self._start_jobs()
        job.waiting += 1
        try:
            return await asyncio.shield(job.stored)
        finally:
            job.waiting -= 1
            queue = self._queues.get(tenant, {})
            is_queued = queue.get(key) is job
            if is_queued and not job.waiting:
                del self._jobs[key], queue[key]
                if not queue:
                    del self._queues[tenant]

    def _start_jobs(self) -> None:
        """Start queued jobs, one tenant after the other, while fewer than ``MAX_CONCURRENT_STORES`` run."""
        while self._queues and len(self._sent) < MAX_CONCURRENT_STORES:
            tenant = next(iter(self._queues))
            queue = self._queues.pop(tenant)
            key = next(iter(queue))
            task = asyncio.create_task(self._run(key, queue.pop(key)))
            self._sent.add(task)
            if queue:
                self._queues[tenant] = queue

    async def _run(self, key: bytes, job: _Job) -> None:
        generation = self._generation
        try:
            result = await job.compute()
        except Exception as error:
            job.stored.set_exception(error)
            job.stored.exception()  # marks it as retrieved, because all clients may have disconnected
        else:
            job.stored.set_result(result)
            if generation == self._generation:
                self._known |= dict.fromkeys(job.keys)
            while len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
        del self._jobs[key]
        self._sent.discard(asyncio.current_task())
        self._start_jobs()

    async def _report(self, model: str, plan: Plan, ids: Sequence[int]) -> Json:
        """Request one token after a prompt. Return the connector's report, or raise an error if there is none."""
        body = {"model": model, "prompt": [*ids, ids[-1]], "max_tokens": 1, "temperature": 0}
        async with aclosing(self._upstream.answers(body | parameters_of(plan, ids))) as answers:
            answer = await anext(answers)
        outcome, cached = _report_of(answer)
        if not outcome or cached is None:
            raise ApiError(502, NO_CONNECTOR, None, "no_connector")
        self._reported = True
        return outcome

    async def _store(self, segments: Segments, document: Sequence[int]) -> bool:
        outcome = await self._report(segments.model, segments.plan(document), [*segments.prefix, *document])
        if not outcome["available"]:
            raise ApiError(503, STORE_FULL, None, "store_unavailable", retry_after=5)
        self._stored.labels(str(outcome["stored"]).lower()).inc()
        return bool(outcome["stored"])


def _report_of(answer: Json) -> tuple[Json, int | None]:
    """Return the connector's report, which is empty in streams, and the number of cached prompt tokens."""
    transferred = answer.get("kv_transfer_params") or {}
    details = answer["usage"].get("prompt_tokens_details") or {}
    return transferred.get("ragbias") or {}, details.get("cached_tokens")
