"""Async calls: equal answers, a free event loop, separate reports, cancellation."""

import asyncio

import pytest
from llama_index.core.llms import ChatMessage

from support.concurrency import cancel_after_passes, gaps_during

PROMPT = "Question: Which gate is blue?\nAnswer:"
LONG = {"max_new_tokens": 2000, "min_new_tokens": 2000}


async def test_async_forms_answer_as_the_sync_ones(llm):
    whole = llm.complete(PROMPT).text
    message = [ChatMessage(content=PROMPT)]
    assert (await llm.acomplete(PROMPT)).text == whole
    assert (await llm.achat(message)).message.content == whole
    chunks = [chunk async for chunk in await llm.astream_complete(PROMPT)]
    replies = [reply async for reply in await llm.astream_chat(message)]
    assert chunks[-1].text == replies[-1].message.content == whole
    assert chunks[-1].additional_kwargs["ragbias"] == replies[-1].additional_kwargs["ragbias"] == llm.last_report
    assert chunks[-1].raw["usage"]["completion_tokens"] > 0


async def test_event_loop_is_free_while_generating(make_llm):
    llm = make_llm(max_new_tokens=100, generate_kwargs={"min_new_tokens": 100})

    async def read_stream() -> None:
        async for _ in await llm.astream_complete(PROMPT):
            pass

    for work in (lambda: llm.acomplete(PROMPT), read_stream):
        gaps = []
        for _ in range(3):
            gaps.append((await gaps_during(work))[-1])
            if gaps[-1] < 0.05:
                break
        assert min(gaps) < 0.05, gaps


async def test_last_report_belongs_to_the_task(llm):
    async def ask(method: str) -> str:
        await llm.acomplete(PROMPT, method=method)
        await asyncio.sleep(0)
        assert llm.last_report is not None
        return str(llm.last_report["method_requested"])

    assert await asyncio.gather(ask("pine"), ask("none"), ask("canonical-order")) == ["pine", "none", "canonical-order"]
    assert llm.last_report is None


@pytest.mark.parametrize("form", ["acomplete", "astream_complete"])
async def test_cancelled_task_stops_the_computation(llm, on_forward, form):
    async def ask() -> None:
        answer = await getattr(llm, form)(PROMPT, **LONG)
        if form == "astream_complete":
            async for _ in answer:
                pass

    with on_forward() as steps:
        await cancel_after_passes(ask(), steps)
        await asyncio.sleep(1)
        stopped_at = len(steps)
        await asyncio.sleep(1)
        assert len(steps) == stopped_at < 1000
