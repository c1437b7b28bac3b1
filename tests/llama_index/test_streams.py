"""Streams: chunks, the last chunk, errors, and abandoned streams."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable

import pytest
from llama_index.core.llms import ChatMessage

from ragbias.errors import RagBiasError

PROMPT = "Question: Which gate is blue?\nAnswer:"
LONG = {"max_new_tokens": 2000, "min_new_tokens": 2000}


def steps_at_rest(steps: list[int]) -> int:
    """Wait until no forward passes run, and return their number."""
    before = -1
    deadline = time.monotonic() + 60
    while before != len(steps) and time.monotonic() < deadline:
        before = len(steps)
        time.sleep(0.5)
    return len(steps)


def fail_at(step: int) -> Callable[[int], None]:
    def action(current: int) -> None:
        if current == step:
            raise RuntimeError("the GPU fell off")

    return action


def test_pieces_add_up_to_the_complete_answer(llm):
    whole = llm.complete(PROMPT).text
    chunks = list(llm.stream_complete(PROMPT))
    assert "".join(chunk.delta or "" for chunk in chunks) == whole
    assert chunks[-1].text == whole
    replies = list(llm.stream_chat([ChatMessage(content=PROMPT)]))
    assert replies[-1].message.content == whole
    assert "".join(reply.delta or "" for reply in replies) == whole


def test_only_the_last_chunk_has_report_and_usage(llm):
    *chunks, last = llm.stream_complete(PROMPT)
    assert chunks
    assert all(not chunk.additional_kwargs and chunk.raw is None for chunk in chunks)
    assert last.additional_kwargs["ragbias"]["method_requested"] == "pine"
    assert last.raw["usage"]["completion_tokens"] == last.additional_kwargs["completion_tokens"]
    assert llm.last_report == last.additional_kwargs["ragbias"]


def test_stop_string_is_never_shown_in_a_stream(make_llm):
    llm = make_llm(max_new_tokens=24)
    whole = llm.complete(PROMPT).text
    stop = whole[len(whole) // 2 :][:4]
    assert "".join(chunk.delta or "" for chunk in llm.stream_complete(PROMPT, stop=stop)) == whole[: whole.index(stop)]


def test_error_inside_generation_reaches_the_reader(llm, on_forward):
    with on_forward(fail_at(3)):
        stream = llm.stream_complete(PROMPT, min_new_tokens=8)
        with pytest.raises(RuntimeError, match="fell off"):
            list(stream)
    with on_forward(fail_at(1)):
        stream = llm.stream_chat([ChatMessage(content=PROMPT)])
        with pytest.raises(RuntimeError, match="fell off"):
            list(stream)


async def test_error_inside_generation_reaches_the_async_reader(llm, on_forward):
    with on_forward(fail_at(3)), pytest.raises(RuntimeError, match="fell off"):
        async for _ in await llm.astream_complete(PROMPT, min_new_tokens=8):
            pass
    with on_forward(fail_at(3)), pytest.raises(RuntimeError, match="fell off"):
        await llm.achat([ChatMessage(content=PROMPT)], min_new_tokens=8)


def test_wrong_argument_of_a_stream_is_an_error_at_the_call(llm):
    with pytest.raises(RagBiasError, match="tempurature"):
        llm.stream_complete(PROMPT, tempurature=1.0)


def test_closed_stream_stops_the_computation(llm, on_forward):
    with on_forward() as steps:
        stream = llm.stream_complete(PROMPT, **LONG)
        next(stream)
        stream.close()
        assert steps_at_rest(steps) < 1000


def test_dropped_stream_stops_the_computation(llm, on_forward):
    with on_forward() as steps:
        stream = llm.stream_chat([ChatMessage(content=PROMPT)], **LONG)
        next(stream)
        del stream
        gc.collect()
        assert steps_at_rest(steps) < 1000


def test_stream_that_was_never_read_stops_the_computation(llm, on_forward):
    with on_forward() as steps:
        stream = llm.stream_complete(PROMPT, **LONG)
        del stream
        gc.collect()
        assert steps_at_rest(steps) < 1000


async def test_closed_stream_leaves_its_report(llm):
    stream = llm.stream_complete(PROMPT)
    next(stream)
    stream.close()
    assert llm.last_report is not None and llm.last_report["method_requested"] == "pine"
    pieces = await llm.astream_chat([ChatMessage(content=PROMPT)], method="rotor")
    await anext(pieces)
    await pieces.aclose()
    assert llm.last_report is not None and llm.last_report["method_requested"] == "rotor"


async def test_closed_async_stream_stops_the_computation(llm, on_forward):
    with on_forward() as steps:
        stream = await llm.astream_complete(PROMPT, **LONG)
        await anext(stream)
        await stream.aclose()
        del stream
        assert await asyncio.to_thread(steps_at_rest, steps) < 1000


def test_no_threads_are_left(llm):
    list(llm.stream_complete(PROMPT))
    before = threading.active_count()
    for _ in range(5):
        stream = llm.stream_complete(PROMPT, **LONG)
        next(stream)
        stream.close()
    assert threading.active_count() <= before
