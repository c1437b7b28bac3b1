"""Caches, events, closing, errors and the event loop in applications."""

import asyncio
import copy
import time

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessageChunk

import ragbias
from langchain_ragbias import ChatRagBias, RagBiasPipeline
from ragbias import DebiasedLM
from support.concurrency import gaps_during
from support.prompts import DOCUMENTS, TEXT


@pytest.fixture
def cache():
    cache = InMemoryCache()
    set_llm_cache(cache)
    yield cache
    set_llm_cache(None)


@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
async def test_the_global_cache_separates_all_that_changes_an_answer(lm, cache, forwards, kind):
    llm = kind(lm=lm, max_tokens=3, on_missing="ignore")
    calls = [
        {}, {"documents": DOCUMENTS}, {"documents": DOCUMENTS[:2]}, {"documents": DOCUMENTS, "method": "none"},
        {"documents": DOCUMENTS, "method": "rotor"}, {"max_tokens": 2}, {"stop": ["x"]},
        {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "seed": 2}, {"repetition_penalty": 2.0},
        {"logprobs": True},
    ]  # fmt: skip
    for entries, arguments in enumerate(calls, 1):
        first = llm.invoke(TEXT, **arguments)
        assert len(cache._cache) == entries
        forwards.clear()
        again = [llm.invoke(TEXT, **arguments), await llm.ainvoke(TEXT, **arguments)]
        assert [getattr(each, "content", each) for each in again] == [getattr(first, "content", first)] * 2
        assert (len(cache._cache), forwards) == (entries, [])
    with ragbias.documents(DOCUMENTS[1:]):
        llm.invoke(TEXT)
    assert len(cache._cache) == len(calls) + 1
    kind(lm=lm, max_tokens=3, method="none").invoke(TEXT)
    assert len(cache._cache) == len(calls) + 2


def test_the_cache_does_not_mix_models_without_a_name(lm, cache):
    other = DebiasedLM(copy.deepcopy(lm.model), lm.tokenizer)
    for each in (lm, other):
        ChatRagBias(lm=each, max_tokens=2).invoke("hi")
    assert len(cache._cache) == 2
    ChatRagBias(lm=lm, max_tokens=2).invoke("hi")
    assert len(cache._cache) == 2


def test_a_cached_message_has_its_report(lm, cache):
    llm = ChatRagBias(lm=lm, max_tokens=3)
    first, again = (llm.invoke(TEXT, documents=DOCUMENTS) for _ in range(2))
    assert first.response_metadata["ragbias"] == again.response_metadata["ragbias"]


def test_usage_is_that_of_the_tokens_streamed_or_not(chat, completion):
    message = chat.invoke(TEXT)
    assert message.usage_metadata["input_tokens"] == len(
        chat.lm.prepare(f"<s><|user|>\n{TEXT}\n<|assistant|>\n").tokens.ids
    )
    chunks = list(chat.stream(TEXT))
    assert [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata] == [message.usage_metadata]
    whole = completion.generate([TEXT]).generations[0][0].generation_info["usage"]
    assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"]
    assert list(completion._stream(TEXT))[-1].generation_info["usage"] == whole


async def test_events_stream_the_tokens_and_end_with_the_message(chat):
    events = [event async for event in chat.astream_events(TEXT, documents=DOCUMENTS, version="v2")]
    pieces = [event["data"]["chunk"] for event in events if event["event"] == "on_chat_model_stream"]
    end = next(event for event in events if event["event"] == "on_chat_model_end")["data"]["output"]
    assert all(isinstance(piece, AIMessageChunk) for piece in pieces)
    assert "".join(piece.content for piece in pieces) == end.content == chat.invoke(TEXT, documents=DOCUMENTS).content
    assert end.usage_metadata["output_tokens"] == 8
    assert end.response_metadata["ragbias"]["n_found"] == 3


async def test_events_of_a_chain_come_from_its_model(chat, rag):
    events = [event async for event in rag(chat).astream_events({"input": "Which?"}, version="v2")]
    names = [event["event"] for event in events]
    assert names.count("on_retriever_end") == 1
    assert names.count("on_chat_model_stream") > 2
    end = next(event for event in events if event["event"] == "on_chat_model_end")["data"]["output"]
    assert end.response_metadata["ragbias"]["source"] == "run"


@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
async def test_an_error_of_the_model_reaches_every_consumer_at_once(lm, kind):
    llm, passes = kind(lm=lm, max_tokens=400), []

    def boom(*_):
        passes.append(time.perf_counter())
        if len(passes) % 5 == 0:
            raise FloatingPointError("boom")

    async def consume(text):
        async for _ in llm.astream(text):
            pass

    hook = lm.model.register_forward_pre_hook(boom)
    try:
        for read in (llm.invoke, lambda text: list(llm.stream(text)), llm.ainvoke, consume):
            with pytest.raises(FloatingPointError, match="boom"):
                answer = read("hello")
                await asyncio.wait_for(answer, 5)
            assert time.perf_counter() - passes[-1] < 1
    finally:
        hook.remove()


@pytest.mark.parametrize("how", ["ainvoke", "astream", "abatch", "agenerate", "logprobs"])
async def test_the_event_loop_is_never_blocked(chat, how):
    async def work():
        if how == "astream":
            async for _ in chat.astream(TEXT, documents=DOCUMENTS, max_tokens=60):
                pass
        elif how == "abatch":
            await chat.abatch([TEXT] * 8, documents=DOCUMENTS, max_tokens=60)
        elif how == "agenerate":
            await chat.agenerate([chat._convert_input(TEXT).to_messages()] * 2)
        else:
            await chat.ainvoke(TEXT, documents=DOCUMENTS, max_tokens=60, logprobs=how == "logprobs")

    gaps = await gaps_during(work)
    assert gaps[len(gaps) // 2] < 0.05
    assert sum(gap > 0.05 for gap in gaps) <= max(2, 0.02 * len(gaps))  # other processes may take the processor
