"""``ChatRagBias(base_url=...)``: same chains, answers and reports with the model on a server."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import tool

from langchain_ragbias import ChatRagBias, RagBiasPipeline, warm
from ragbias import DebiasedLM, DocumentCache
from ragbias.errors import ArgumentError, MethodError, NoDocumentsError, PromptTooLongError, ServerError
from ragbias.methods import Pine
from support.langchain_pipelines import FORMATS
from support.live_server import serving
from support.scripted import saying

TEXTS = ["The mascot of Heron Mill is a brass owl.", "The mascot of Ember Abbey is a tin whale."]
PROMPT = f"Notes:\n{TEXTS[0]}\n{TEXTS[1]}\n\nWhat is the mascot of Heron Mill?"


@pytest.fixture(scope="module")
def address(lm: DebiasedLM, tool_lm: DebiasedLM) -> Iterator[str]:
    with serving({"small": lm, "tools": tool_lm}, api_key="key") as found:
        yield found


@pytest.fixture
def remote(address) -> ChatRagBias:
    return ChatRagBias(base_url=address, model_id="small", api_key="key", max_tokens=8)


def same(one, other) -> None:
    assert one.content == other.content
    about, expected = one.response_metadata["ragbias"], other.response_metadata["ragbias"]
    assert about == expected
    assert one.usage_metadata["total_tokens"] == other.usage_metadata["total_tokens"]
    assert one.response_metadata["finish_reason"] == other.response_metadata["finish_reason"]


def test_the_stock_chain_is_answered_as_it_is_locally(rag, chat, remote):
    question = {"input": "What is the mascot of Heron Mill?"}
    answer, theirs = rag(remote).invoke(question)["answer"], remote.last_report
    own, ours = rag(chat).invoke(question)["answer"], chat.last_report
    assert answer == own and theirs == ours
    assert theirs["source"] == "run" and theirs["n_found"] == 5


@pytest.mark.parametrize("form", FORMATS)
def test_each_way_to_write_documents_gives_the_same_report(retriever, chat, remote, form):
    prompt = ChatPromptTemplate.from_messages([("system", "Context:\n{context}"), ("human", "{input}")])

    def ask(llm):
        given = {"context": retriever | FORMATS[form], "input": RunnablePassthrough()}
        return (given | prompt | llm).invoke("What is the mascot of Heron Mill?")

    same(ask(remote), ask(chat))


async def test_every_way_to_call_answers_the_same(chat, remote):
    documents = [Document(text) for text in TEXTS]
    own = chat.invoke(PROMPT, documents=documents)
    same(remote.invoke(PROMPT, documents=documents), own)
    same(await remote.ainvoke(PROMPT, documents=documents), own)
    chunks = list(remote.stream(PROMPT, documents=documents))
    whole = chunks[0]
    for each in chunks[1:]:
        whole += each
    same(whole, own)
    assert "".join([str(each.content) async for each in remote.astream(PROMPT, documents=documents)]) == own.content
    for each in [
        *remote.batch([PROMPT] * 3, documents=documents),
        *await remote.abatch([PROMPT] * 2, documents=documents),
    ]:
        same(each, own)
    assert remote.last_report == own.response_metadata["ragbias"]


def test_arguments_of_the_call_mean_the_same(chat, remote):
    given = {"temperature": 1.5, "seed": 3, "stop": ["e"], "max_tokens": 12, "logprobs": True, "method": "none"}
    message, own = remote.invoke(PROMPT, **given), chat.invoke(PROMPT, **given)
    same(message, own)
    theirs, ours = (each.response_metadata["logprobs"]["content"] for each in (message, own))
    assert [each["token"] for each in theirs] == [each["token"] for each in ours]
    assert [each["logprob"] for each in theirs] == pytest.approx([each["logprob"] for each in ours], abs=1e-5)


@pytest.mark.parametrize(
    "method", ["ape(scale=0.5)", "siw+self-extend(group=2,window=64)", Pine(order="reverse"), "canonical-order"]
)
def test_methods_are_sent_as_they_are(chat, remote, method):
    same(remote.invoke(PROMPT, documents=TEXTS, method=method), chat.invoke(PROMPT, documents=TEXTS, method=method))


@tool
def search(query: str) -> str:
    """Look something up."""
    return query


def test_calls_of_tools_are_read_here(address, tool_lm):
    llm = ChatRagBias(base_url=f"{address}/v1/", model_id="tools", api_key="key", max_tokens=200)
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "gate"}}\n</tool_call>'
    broken = '<tool_call>\n{"name": "search", "arguments": {"query": }}\n</tool_call>'
    with saying(tool_lm, call, broken, call, call):
        bound = llm.bind_tools([search])
        assert [each["args"] for each in bound.invoke("Go.").tool_calls] == [{"query": "gate"}]
        assert [each["name"] for each in bound.invoke("Go.").invalid_tool_calls] == ["search"]
        forced = llm.bind_tools([search], tool_choice="any").invoke("Go.")
        assert [each["name"] for each in forced.tool_calls] == ["search"]
        streamed = list(bound.stream("Go."))
    assert streamed[-1].tool_calls[0]["args"] == {"query": "gate"} and not any(each.content for each in streamed)


def test_json_is_requested_from_the_server(address, tool_lm):
    llm = ChatRagBias(base_url=address, model_id="tools", api_key="key", max_tokens=100)
    with saying(tool_lm, '"owl": 1}'):
        assert llm.with_structured_output({"title": "Owls", "type": "object"}, method="json_schema").invoke("Go.") == {
            "owl": 1
        }


def test_tokens_are_counted_by_the_servers_tokenizer(chat, remote):
    assert remote.get_token_ids(PROMPT) == chat.get_token_ids(PROMPT)


def test_errors_are_those_of_a_local_model(address, remote):
    with pytest.raises(PromptTooLongError, match="too many for an answer .* window of 16384"):
        remote.invoke("owl " * 20_000)
    with pytest.raises(MethodError, match="layers"):
        remote.invoke(PROMPT, documents=TEXTS, method="pine(layers=(900, 950))")
    with pytest.raises(NoDocumentsError, match="located 0 of 2 expected documents"):
        ChatRagBias(base_url=address, model_id="small", api_key="key", on_missing="raise").invoke(
            "Hello", documents=TEXTS
        )


def test_an_unreachable_server_is_reported(address):
    with pytest.raises(ServerError, match=r"status 401.*; give api_key=, or set RAGBIAS_API_KEY"):
        ChatRagBias(base_url=address, api_key="wrong")
    with pytest.raises(ServerError, match="has 2 models"):
        ChatRagBias(base_url=address, api_key="key")
    with pytest.raises(ServerError, match="no model 'other'"):
        ChatRagBias(base_url=address, model_id="other", api_key="key")
    with pytest.raises(ServerError, match="does not answer"):
        ChatRagBias(base_url="http://127.0.0.1:9", max_retries=0)
    with pytest.raises(ArgumentError, match="expected an address"):
        ChatRagBias(base_url="127.0.0.1:8000")


def test_what_the_server_settles_is_refused(address):
    with pytest.raises(ArgumentError, match="strip_numbering=True contradicts the existing model; .* `ragbias serve`"):
        ChatRagBias(base_url=address, model_id="small", api_key="key", strip_numbering=True)
    with pytest.raises(ArgumentError, match="backend='torch' contradicts the existing model; leave it out"):
        ChatRagBias(base_url=address, model_id="small", api_key="key", backend="torch")


def test_documents_are_not_warmed_through_a_server(remote):
    template = ChatPromptTemplate.from_messages([("system", "{context}"), ("human", "{input}")])
    with pytest.raises(ArgumentError, match="caches documents itself; fill a folder with a local model.* --cache"):
        warm(remote, TEXTS, template, progress=False)


def test_base_url_and_a_loaded_model_are_too_much(address, lm):
    with pytest.raises(ArgumentError, match="give one of them"):
        ChatRagBias(base_url=address, lm=lm, model_id="small", api_key="key")
    with pytest.raises(ArgumentError, match="base_url and document_cache"):
        ChatRagBias(base_url=address, document_cache=DocumentCache(), model_id="small", api_key="key")


def test_a_server_that_comes_back_gets_a_retry(lm):
    llm = None
    with serving({"small": lm}) as address:
        llm = ChatRagBias(base_url=address, max_tokens=2, max_retries=4)
        assert llm.model_id == "small"
    port = int(address.rsplit(":", 1)[1])
    outcome: list[object] = []
    asking = threading.Thread(target=lambda: outcome.append(llm.invoke("Hello").content))
    asking.start()
    time.sleep(0.2)
    with serving({"small": lm}, port=port):
        asking.join(30)
    assert len(outcome) == 1


def test_a_request_that_takes_too_long_is_given_up(lm, address):
    llm = ChatRagBias(base_url=address, model_id="small", api_key="key", timeout=0.5, max_retries=0, max_tokens=2_000)
    handle = lm.model.register_forward_pre_hook(lambda *_: time.sleep(0.05))
    try:
        with pytest.raises(ServerError, match=r"does not answer \(ReadTimeout"):
            llm.invoke("Hello", temperature=1.0)
    finally:
        handle.remove()


async def test_cancelling_stops_the_server(lm, address):
    llm = ChatRagBias(base_url=address, model_id="small", api_key="key", max_tokens=2_000, temperature=1.0)
    passes: list[float] = []
    handle = lm.model.register_forward_pre_hook(lambda *_: (passes.append(0), time.sleep(0.01))[1])
    try:
        task = asyncio.create_task(llm.ainvoke("Hello"))
        while len(passes) < 5:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.3)
        count = len(passes)
        await asyncio.sleep(0.2)
        assert len(passes) == count < 100
    finally:
        handle.remove()


def test_a_completion_model_answers_the_same_from_a_server(address, completion):
    llm = RagBiasPipeline(base_url=address, model_id="small", api_key="key", max_tokens=8)
    answer, report = llm.invoke(PROMPT, documents=TEXTS), llm.last_report
    assert completion.invoke(PROMPT, documents=TEXTS) == answer
    assert completion.last_report == report
    assert "".join(llm.stream(PROMPT, documents=TEXTS)) == llm.invoke(PROMPT, documents=TEXTS)
