"""Requests from ``ragbias proxy`` to vLLM: fairness, disconnects, lost documents, checks, and secrets."""

import asyncio
from contextlib import nullcontext

import httpx
import pytest

from ragbias.errors import ArgumentError, ServerError
from ragbias.serving.errors import ApiError
from ragbias.serving.server import Metrics
from ragbias.serving.settings import UpstreamModel

pytest.importorskip("ragbias_vllm")

from ragbias_vllm import proxy_upstream
from ragbias_vllm.proxy_upstream import MAX_CONCURRENT_STORES, Segments, StoredDocuments, UpstreamFailedError, Vllm

ADDRESS = "http://user:secret@host:1"
PREFIX = [1, 2]
A, B = "a" * 64, "b" * 64


def segments(scope, first, count, prefix=PREFIX):
    return Segments("pcw", prefix, [[number] for number in range(first, first + count)], scope, "tiny")


class Upstream:
    """A server that answers store requests on release, and records scope and document of each."""

    def __init__(self):
        self.sent, self.gate, self.error = [], asyncio.Semaphore(0), None
        self.loaded = None

    async def answers(self, body):
        parameters = body["kv_transfer_params"]["ragbias"]
        if "store" not in parameters:
            cached = {"prompt_tokens_details": {"cached_tokens": self.loaded}}
            yield {"usage": cached, "kv_transfer_params": {"ragbias": {"loaded": self.loaded}}, "choices": []}
            return
        self.sent.append((parameters["scope"], body["prompt"][-1]))
        await self.gate.acquire()
        if self.error:
            raise self.error
        yield {
            "kv_transfer_params": {"ragbias": {"stored": True, "available": True}},
            "usage": {"prompt_tokens_details": {"cached_tokens": 0}},
        }

    async def release(self, count):
        for _ in range(count):
            self.gate.release()
        await settle()

    def documents(self, scope):
        return [document for sent, document in self.sent if sent == scope]


async def settle():
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def upstream():
    return Upstream()


@pytest.fixture
async def stored(upstream):
    return StoredDocuments(upstream, Metrics())


async def start(stored, *arguments):
    task = asyncio.create_task(stored.store(segments(*arguments)))
    await settle()
    return task


async def test_a_burst_of_one_tenant_does_not_delay_another(stored, upstream):
    burst = await start(stored, A, 100, 500)
    late = await start(stored, B, 100, 3)
    assert len(upstream.sent) == MAX_CONCURRENT_STORES and not upstream.documents(B)
    await upstream.release(6)
    assert upstream.documents(B) == [100, 101, 102]
    await upstream.release(MAX_CONCURRENT_STORES)
    assert late.done() and not burst.done()
    await upstream.release(1_000)
    assert await burst == 0 and len(upstream.documents(A)) == 500


async def test_a_full_queue_of_one_tenant_refuses_no_other(stored, upstream, monkeypatch):
    monkeypatch.setattr(proxy_upstream, "MAX_WAITING", 20)
    await start(stored, A, 100, 20 + MAX_CONCURRENT_STORES)
    with pytest.raises(ApiError, match="too many documents wait"):
        await stored.store(segments(A, 500, 1))
    other_key_of_tenant = A[:32] + "f" * 32
    with pytest.raises(ApiError, match="too many documents wait"):
        await stored.store(segments(other_key_of_tenant, 500, 1))
    late = await start(stored, B, 500, 1)
    await upstream.release(100)
    assert await late == 0


async def test_documents_of_a_client_that_left_are_not_sent(stored, upstream):
    leaving = await start(stored, A, 100, 50)
    staying = await start(stored, A, 140, 20)
    leaving.cancel()
    await upstream.release(1_000)
    assert await staying == 0 and leaving.cancelled()
    assert sorted(upstream.documents(A)) == [*range(100, 100 + MAX_CONCURRENT_STORES), *range(140, 160)]
    assert not stored._jobs and not stored._queues and not stored._sent


async def test_a_client_that_leaves_stops_no_other_with_its_document(stored, upstream):
    first, second = await start(stored, A, 100, 1), await start(stored, A, 100, 1)
    first.cancel()
    await upstream.release(1)
    assert await second == 0 and len(upstream.sent) == 1


async def test_a_failed_document_drops_no_later_request_for_it(stored, upstream):
    failing = await start(stored, A, 1, 1)
    await start(stored, B, 100, MAX_CONCURRENT_STORES + 5)  # later documents are queued
    upstream.error = UpstreamFailedError("its document is lost")
    upstream.gate.release()
    later = []
    for _ in range(10):
        later.append(asyncio.create_task(stored.store(segments(A, 1, 1))))
        await asyncio.sleep(0)
    upstream.error = None
    await upstream.release(100)
    outcomes = await asyncio.wait_for(asyncio.gather(failing, *later, return_exceptions=True), 5)
    assert isinstance(outcomes[0], UpstreamFailedError) and outcomes[-1] == 0


async def test_an_error_drops_the_other_documents_of_a_request(stored, upstream):
    upstream.error = UpstreamFailedError("broken")
    failing = await start(stored, A, 100, 50)
    await upstream.release(1)
    with pytest.raises(UpstreamFailedError, match="broken"):
        await failing
    await upstream.release(1_000)
    assert len(upstream.sent) <= MAX_CONCURRENT_STORES + 1 and not stored._jobs


@pytest.mark.parametrize("lost", [None, segments(A, 100, 1).keys()])
async def test_documents_stored_while_others_are_lost_are_forgotten(stored, upstream, lost):
    storing = await start(stored, A, 100, 2)
    stored.forget(lost)
    await upstream.release(2)
    await storing
    again = await start(stored, A, 100, 2)
    assert len(upstream.sent) == 4
    await upstream.release(2)
    assert await again == 0
    assert await stored.store(segments(A, 100, 2)) == len(PREFIX) + 2


async def test_documents_lost_while_a_request_waits_are_forgotten(stored, upstream):
    await upstream.release(1)
    await stored.store(segments(A, 100, 1))
    both = await start(stored, A, 100, 2)  # the first document is known, the second is being stored
    stored.forget(segments(A, 100, 1).keys())
    await upstream.release(1)
    await both
    again = await start(stored, A, 100, 1)
    assert upstream.documents(A) == [100, 101, 100]
    again.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_loaded_too_little_is_an_error(stored, upstream, stream):
    prompt = segments(A, 100, 2)
    await upstream.release(100)
    body = {**proxy_upstream.parameters_of(prompt.plan(), prompt.ids), "stream": stream}
    for upstream.loaded in (None, 0, len(PREFIX) + 1):
        with pytest.raises(UpstreamFailedError, match="without the stored documents"):
            assert not [answer async for answer in stored.answers(body, prompt, nullcontext)]
    upstream.loaded = len(PREFIX) + 2
    assert [cached async for cached, _ in stored.answers(body, prompt, nullcontext)] == [0]


def test_a_password_in_the_address_is_in_no_error_and_no_log(caplog, monkeypatch):
    replies = iter([httpx.ConnectError("refused"), httpx.Response(500, request=httpx.Request("GET", ADDRESS))])

    def get(url, **options):
        assert url == f"{ADDRESS}/v1/models"
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setattr(proxy_upstream.time, "sleep", lambda seconds: None)
    caplog.set_level("INFO", "ragbias.serving")
    with pytest.raises(ServerError, match="does not list models") as caught:
        Vllm(ADDRESS, "", 1).models()
    with pytest.raises(ArgumentError, match="upstream='host'; expected an address"):
        Vllm("user:secret@host", "", 1)
    assert caplog.records[0].fields["upstream"] == "http://host:1"
    assert "secret" not in f"{caught.value}{caplog.text}"
    assert "secret" not in repr(UpstreamModel(ADDRESS, "pcw", key="secret"))
