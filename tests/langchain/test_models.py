"""LangChain's model interface: usage, overrides, streams, async, caches."""

import asyncio

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage

from langchain_ragbias import ChatRagBias, RagBiasPipeline
from ragbias.errors import NoDocumentsError
from support.integrations import REPORT_KEYS
from support.prompts import DOCUMENTS, TEXT


def test_a_message_has_usage_and_report(chat):
    message = chat.invoke([SystemMessage("Be brief."), HumanMessage(TEXT)], documents=DOCUMENTS)
    usage = message.usage_metadata
    assert usage["output_tokens"] == 8
    assert usage["total_tokens"] == usage["input_tokens"] + 8
    assert message.response_metadata["finish_reason"] == "length"
    assert set(message.response_metadata["ragbias"]) == REPORT_KEYS


def test_a_stream_adds_up_and_reports_in_its_last_chunk_only(chat):
    message = chat.invoke(TEXT, documents=DOCUMENTS)
    chunks = list(chat.stream(TEXT, documents=DOCUMENTS))
    whole = sum(chunks[1:], chunks[0])
    assert isinstance(whole, AIMessageChunk)
    assert whole.content == message.content
    assert whole.usage_metadata == message.usage_metadata
    assert whole.response_metadata["ragbias"] == message.response_metadata["ragbias"] == chat.last_report
    assert all("ragbias" not in chunk.response_metadata for chunk in chunks[:-1])
    assert "ragbias" in chunks[-1].response_metadata


async def test_async_answers_are_those_of_the_sync_calls(chat, completion):
    for llm in (chat, completion):
        whole = llm.invoke(TEXT, documents=DOCUMENTS)
        assert await llm.ainvoke(TEXT, documents=DOCUMENTS) == whole or (
            (await llm.ainvoke(TEXT, documents=DOCUMENTS)).content == whole.content
        )
        assert llm.last_report["n_found"] == 3
        pieces = [piece async for piece in llm.astream(TEXT, documents=DOCUMENTS)]
        texts = [piece if isinstance(piece, str) else piece.content for piece in pieces]
        assert "".join(texts) == (whole if isinstance(whole, str) else whole.content)
        assert llm.last_report["n_found"] == 3
        batch = await llm.abatch([TEXT, TEXT], documents=DOCUMENTS)
        assert [item if isinstance(item, str) else item.content for item in batch] == ["".join(texts)] * 2


async def test_concurrent_async_requests_keep_their_own_reports(chat):
    async def ask(number):
        text = "Context: " + "\n\n".join(DOCUMENTS[:number]) + "\n\nQuestion: Which?"
        await chat.ainvoke(text, documents=DOCUMENTS[:number], max_tokens=3)
        return chat.last_report["n_found"]

    assert await asyncio.gather(*(ask(number) for number in (2, 3, 2, 3))) == [2, 3, 2, 3]


def test_arguments_of_a_call_override_those_of_the_model(chat, completion):
    for llm in (chat, completion):
        usage = lambda **given: list(llm.generate_prompt([llm._convert_input(TEXT)], **given).generations)[0][0]  # noqa: B023, E731, RUF015
        assert llm.invoke(TEXT, documents=DOCUMENTS, method="none") != ""
        assert llm.last_report["method_ran"] == "none"
        assert llm.last_report["method_requested"] == "none"
        llm.invoke(TEXT, documents=DOCUMENTS)
        assert llm.last_report["method_ran"] == "pine"
        long = usage(max_new_tokens=12).text
        short = usage(max_tokens=3).text
        assert len(short) < len(long)
        assert long.startswith(short[:-1])


def test_stop_strings_end_an_answer_and_are_not_part_of_it(chat, lm):
    text = chat.invoke(TEXT).content
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    expected = text[: text.index(stop)]
    assert chat.invoke(TEXT, stop=[stop]).content == expected
    assert "".join(chunk.content for chunk in chat.stream(TEXT, stop=[stop])) == expected
    assert chat.bind(stop=[stop]).invoke(TEXT).content == expected
    assert ChatRagBias(lm=lm, max_tokens=8, stop=stop).invoke(TEXT).content == expected
    assert chat.invoke(TEXT, stop=[stop]).response_metadata["finish_reason"] == "stop"


def test_a_seed_repeats_a_sample(chat):
    first, again, other = (chat.invoke(TEXT, temperature=2.0, seed=seed).content for seed in (1, 1, 2))
    assert first == again != other


def test_a_cache_mixes_neither_methods_nor_documents(lm):
    cache = InMemoryCache()
    models = [ChatRagBias(lm=lm, max_tokens=3, method=method, cache=cache) for method in ("pine", "none")]
    for llm in models:
        llm.invoke(TEXT, documents=DOCUMENTS)
    assert len(cache._cache) == 2
    models[0].invoke(TEXT, documents=DOCUMENTS)
    assert len(cache._cache) == 2
    models[0].invoke(TEXT, documents=DOCUMENTS[:2])
    assert len(cache._cache) == 3
    models[0].invoke(TEXT, documents=DOCUMENTS, method="none")  # what the second model answered
    assert len(cache._cache) == 3


@pytest.mark.filterwarnings("ignore::langchain_ragbias.MissingDocumentsWarning")
@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
def test_required_documents_rule_out_a_cached_plain_answer(lm, kind):
    cache = InMemoryCache()
    kind(lm=lm, max_tokens=3, cache=cache).invoke(TEXT)
    with pytest.raises(NoDocumentsError, match="located none in the prompt"):
        kind(lm=lm, max_tokens=3, cache=cache, on_missing="raise").invoke(TEXT)


@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
async def test_the_last_report_is_also_that_of_a_cached_answer(lm, kind):
    cache = InMemoryCache()
    first, again = (kind(lm=lm, max_tokens=3, cache=cache) for _ in range(2))
    first.invoke(TEXT, documents=DOCUMENTS)
    again.invoke(TEXT, documents=DOCUMENTS)
    report = first.last_report
    assert again.last_report == report
    assert report["method_ran"] == "pine"
    later = kind(lm=lm, max_tokens=3, cache=cache)
    await later.ainvoke(TEXT, documents=DOCUMENTS)
    assert later.last_report == report


async def test_the_embedded_model_answers_by_its_name():
    llm = ChatRagBias(model_id="tiny", max_tokens=8)
    question = "Context: " + "\n\n".join(DOCUMENTS) + "\n\nQuestion: Which is green?"
    message = await llm.ainvoke(question, documents=DOCUMENTS)
    assert message.response_metadata["model_name"] == "tiny"
    assert message.response_metadata["ragbias"]["method_ran"] == "pine"


def test_the_method_is_an_identifying_parameter(lm):
    assert ChatRagBias(lm=lm, method="none")._identifying_params["method"] == "none"
    assert "Pine" in RagBiasPipeline(lm=lm)._identifying_params["method"]


def test_a_model_and_its_tokenizer_may_be_given(lm):
    llm = RagBiasPipeline(model=lm.model, tokenizer=lm.tokenizer, max_new_tokens=4)
    assert llm.max_tokens == llm.max_new_tokens == 4
    assert llm.invoke(TEXT) == RagBiasPipeline(lm=lm, max_tokens=4).invoke(TEXT)


def test_a_completion_holds_new_text_only_and_its_report(completion):
    result = completion.generate([TEXT], documents=DOCUMENTS)
    generation = result.generations[0][0]
    assert TEXT not in generation.text
    assert generation.generation_info["ragbias"]["n_found"] == 3
    assert generation.generation_info["usage"]["completion_tokens"] == 8


def test_an_order_of_documents_does_not_change_the_answer(chat):
    forward = chat.invoke(TEXT, documents=DOCUMENTS).content
    text = "Context: " + "\n\n".join(DOCUMENTS[::-1]) + "\n\nQuestion: Which is green?"
    assert chat.invoke(text, documents=DOCUMENTS).content == forward
