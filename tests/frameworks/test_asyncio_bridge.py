"""Blocking work next to an event loop: results, errors, context, cancellation, and separate threads."""

import asyncio
import gc
import threading
import time
from contextvars import ContextVar

import pytest

from ragbias.frameworks import asyncio_bridge as bridge
from support.concurrency import gaps_during

PROMPT = "Which gate is red?"
_number: ContextVar[int] = ContextVar("number")


async def test_a_function_sees_the_callers_context():
    _number.set(7)
    assert await bridge.in_thread(lambda _: _number.get()) == 7


async def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        await bridge.in_thread(lambda _: 1 / 0)


async def test_a_cancelled_caller_sets_the_event():
    started, stopped = threading.Event(), threading.Event()

    def work(cancelled):
        started.set()
        if cancelled.wait(10):
            stopped.set()

    task = asyncio.create_task(bridge.in_thread(work))
    while not started.is_set():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(stopped.wait, 5)


async def test_many_long_calls_keep_no_short_one_waiting():
    release = threading.Event()
    long = [asyncio.create_task(bridge.in_thread(lambda _: release.wait(20))) for _ in range(64)]
    try:
        assert await asyncio.wait_for(bridge.in_thread(lambda _: "short"), 5) == "short"
    finally:
        release.set()
    assert all(await asyncio.gather(*long))


async def test_the_loop_is_free_while_a_stream_is_read(lm):
    stream = lm.stream(PROMPT, max_new_tokens=60)

    async def read():
        assert "".join([piece async for piece in bridge.pieces(stream)]) == stream.generation.text

    gaps = await gaps_during(read)
    assert gaps[len(gaps) // 2] < 0.05


async def test_a_streams_error_reaches_its_reader_within_a_second(lm):
    passes = []

    def fail(*_):
        passes.append(time.perf_counter())
        if len(passes) == 4:
            raise FloatingPointError("boom")

    hook = lm.model.register_forward_pre_hook(fail)
    try:
        with pytest.raises(FloatingPointError, match="boom"):
            async for _ in bridge.pieces(lm.stream(PROMPT, max_new_tokens=60)):
                pass
        assert time.perf_counter() - passes[-1] < 1
    finally:
        hook.remove()


async def test_closing_stops_the_computation(lm):
    stream = lm.stream(PROMPT, max_new_tokens=3000)
    pieces = bridge.pieces(stream)
    await anext(pieces)
    await pieces.aclose()
    await asyncio.to_thread(stream._thread.join, 5)
    assert not stream._thread.is_alive()


def test_a_loop_closed_with_an_open_stream_logs_nothing(lm, caplog):
    async def leave():
        reader = bridge.pieces(lm.stream(PROMPT, max_new_tokens=60, min_new_tokens=60))
        await anext(reader)
        return reader

    loop = asyncio.new_event_loop()
    reader = loop.run_until_complete(leave())
    loop.close()
    for thread in threading.enumerate():
        if thread.name == "ragbias-async":
            thread.join(60)
    del reader
    gc.collect()
    assert caplog.records == []
