"""If a client disconnects, its computation stops at the next token, and other requests continue."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
import torch

from ragbias import DebiasedLM
from ragbias.serving.engine import PREPARED_AT_ONCE
from ragbias.serving.errors import ApiError
from ragbias.serving.local_engine import LocalModel
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ServerSettings
from support.live_server import listening_app, local_app

PROMPT = {"model": "slow", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 2_000, "temperature": 1}
STEP = 0.01  # seconds of a forward pass, at least
FEW = 3  # passes: the one that runs, and what the news of the disconnect takes on a busy core


class Slow:
    """Slow down each forward pass of a model, and count them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.passes = 0
        self._handle = model.register_forward_pre_hook(self._wait)

    def _wait(self, *_: object) -> None:
        self.passes += 1
        time.sleep(STEP)

    def remove(self) -> None:
        self._handle.remove()

    def stops(self, within: float = 5.0) -> int:
        """Wait until no more passes run, and return their number."""
        begin, last, deadline = self.passes, -1, time.monotonic() + within
        while self.passes != last:
            assert time.monotonic() < deadline, "it goes on"
            last = self.passes
            time.sleep(10 * STEP)
        return self.passes - begin


@pytest.fixture(scope="module")
def server(small_lm: DebiasedLM) -> Iterator[tuple[str, Callable[[str], float]]]:
    app, _, counters = local_app({"slow": small_lm}, batch_wait_ms=60)

    def value(name: str) -> float:
        labels = {} if name == "ragbias_disconnects_total" else {"model": "slow"}
        return counters.registry.get_sample_value(name, labels) or 0.0

    with listening_app(app) as address:
        yield address, value


@pytest.fixture
def slow(small_lm: DebiasedLM) -> Iterator[Slow]:
    found = Slow(small_lm.model)
    yield found
    found.remove()


def test_leaving_a_stream_stops_it(server, slow):
    with (
        httpx.Client(base_url=server[0]) as client,
        client.stream("POST", "/v1/chat/completions", json={**PROMPT, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        while not json.loads(next(line for line in lines if line)[6:])["choices"][0]["delta"].get("content"):
            pass
    assert slow.stops() <= FEW
    assert server[1]("ragbias_disconnects_total") >= 1


def test_leaving_before_an_answer_stops_it(server, slow):
    with httpx.Client(base_url=server[0], timeout=20 * STEP) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=PROMPT)
    assert slow.stops() <= FEW


async def test_who_leaves_a_batch_does_not_stop_the_others(server, slow):
    body, before = {**PROMPT, "seed": 1}, server[1]("ragbias_batch_requests_count")
    async with httpx.AsyncClient(base_url=server[0], timeout=None) as client:
        leaving = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        staying = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await passes(slow, 10)
        leaving.cancel()
        await passes(slow, 10)
        assert server[1]("ragbias_batch_requests_count") - before == 1 and not staying.done()
        staying.cancel()
    assert await asyncio.to_thread(slow.stops) <= FEW


async def passes(slow: Slow, count: int) -> None:
    """Wait for this many further forward passes."""
    least = slow.passes + count
    while slow.passes < least:
        await asyncio.sleep(STEP)


async def test_who_leaves_while_waiting_is_never_computed(server, slow):
    async with httpx.AsyncClient(base_url=server[0], timeout=None) as client:
        first = asyncio.create_task(client.post("/v1/chat/completions", json={**PROMPT, "max_tokens": 40}))
        await passes(slow, 5)
        second = asyncio.create_task(client.post("/v1/chat/completions", json={**PROMPT, "seed": 1}))
        await asyncio.sleep(5 * STEP)
        second.cancel()
        assert (await first).status_code == 200
    assert await asyncio.to_thread(slow.stops) <= FEW


@pytest.mark.slow
async def test_a_hundred_that_leave_leave_nothing_behind(server, slow):
    async def leave(client: httpx.AsyncClient, number: int) -> None:
        body = {**PROMPT, "stream": number % 2 == 0, "seed": number % 3}
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.post("/v1/chat/completions", json=body), 0.3 + number % 7 / 10)

    before = server[1]("ragbias_disconnects_total")
    async with httpx.AsyncClient(base_url=server[0], timeout=None, limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(*(leave(client, number) for number in range(100)))
    assert await asyncio.to_thread(slow.stops) <= FEW * 5  # a batch and four streams
    assert server[1]("ragbias_disconnects_total") - before == 100
    assert server[1]("ragbias_waiting_requests") == server[1]("ragbias_running_requests") == 0


async def reached(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not reached in 5 s")


async def test_leaving_in_preparation_holds_the_slot_until_thread_end(small_lm):
    ended, running, most, count = threading.Event(), 0, 0, PREPARED_AT_ONCE + 2
    served = LocalModel(small_lm, "slow", ServerSettings(max_waiting=count), Metrics())

    def work(cancelled: threading.Event) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        ended.wait(10)
        running -= 1

    async def prepare() -> None:
        async with served.queue_slot():
            await served.run_in_thread(work)

    tasks = [asyncio.create_task(prepare()) for _ in range(count)]
    await reached(lambda: running == PREPARED_AT_ONCE)
    for task in tasks[:PREPARED_AT_ONCE]:
        task.cancel()
    await asyncio.sleep(0.1)
    assert running == most == PREPARED_AT_ONCE
    with pytest.raises(ApiError, match=f"{count} requests are waiting"):
        async with served.queue_slot():
            pass
    ended.set()
    assert await asyncio.gather(*tasks[PREPARED_AT_ONCE:]) == [None, None]
    await reached(lambda: served._queued == 0)
    async with served.queue_slot():
        assert served._queued == 1
