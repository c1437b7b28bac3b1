"""Streams: chunks, the last chunk, errors, and abandoned streams."""

import asyncio
import gc
import threading
import time

import pytest
from llama_index.core.llms import ChatMessage

from ragbias.errors import RagBiasError

PROMPT = "Question: Which gate is blue?\nAnswer:"
CHAT = [ChatMessage(content=PROMPT)]
LONG = {"max_new_tokens": 2000, "min_new_tokens": 2000}


def steps_at_rest(steps: list[int]) -> int:
    """Wait until no forward passes run, and return their number."""
    before = -1
    deadline = time.monotonic() + 60
    while before != len(steps) and time.monotonic() < deadline:
        before = len(steps)
        time.sleep(0.5)
    return len(steps)


def test_pieces_add_up_to_the_complete_answer(llm):
    whole = llm.complete(PROMPT).text
    chunks = list(llm.stream_complete(PROMPT))
    assert "".join(chunk.delta or "" for chunk in chunks) == whole
    assert chunks[-1].text == whole
    replies = list(llm.stream_chat(CHAT))
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


def test_wrong_argument_of_a_stream_is_an_error_at_the_call(llm):
    with pytest.raises(RagBiasError, match="tempurature"):
        llm.stream_complete(PROMPT, tempurature=1.0)


@pytest.mark.parametrize("end", ["closed", "dropped", "never read"])
def test_abandoned_stream_stops_the_computation(llm, on_forward, end):
    with on_forward() as steps:
        stream = llm.stream_chat(CHAT, **LONG) if end == "dropped" else llm.stream_complete(PROMPT, **LONG)
        if end != "never read":
            next(stream)
        if end == "closed":
            stream.close()
        del stream
        gc.collect()
        assert steps_at_rest(steps) < 1000


async def test_closed_stream_leaves_its_report(llm):
    stream = llm.stream_complete(PROMPT)
    next(stream)
    stream.close()
    assert llm.last_report is not None and llm.last_report["method_requested"] == "pine"
    pieces = await llm.astream_chat(CHAT, method="rotor")
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
