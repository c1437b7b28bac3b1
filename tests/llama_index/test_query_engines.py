"""Stock query and chat engines over real FAISS indexes find the retrieved documents in every kind of call."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.llms.ragbias import MissingDocumentsWarning, RagBiasLLM

QUESTION = "What is the passphrase?"
TOP_K = 4


class Reverse(BaseNodePostprocessor):
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return nodes[::-1]


def assert_found(llm: RagBiasLLM, source: str, count: int = TOP_K) -> None:
    report = llm.last_report
    assert report is not None
    assert (report["source"], report["n_expected"], report["n_found"]) == (source, count, count), report
    assert report["method_ran"] == "pine"
    assert len(report["spans"]) == count


@pytest.mark.parametrize("is_chat_model", [True, False])
@pytest.mark.parametrize("mode", ["compact", "simple_summarize", "tree_summarize"])
def test_query_engine_finds_the_documents(make_llm, index, mode, is_chat_model):
    llm = make_llm(is_chat_model=is_chat_model)
    index.as_query_engine(llm=llm, similarity_top_k=TOP_K, response_mode=mode).query(QUESTION)
    assert_found(llm, "run")


@pytest.mark.parametrize("mode", ["compact", "simple_summarize"])
async def test_async_query_engine_finds_the_documents(llm, index, mode):
    await index.as_query_engine(llm=llm, similarity_top_k=TOP_K, response_mode=mode).aquery(QUESTION)
    assert_found(llm, "run")


@pytest.mark.parametrize("mode", ["compact", "simple_summarize"])
def test_streaming_query_engine_finds_the_documents(llm, index, mode):
    engine = index.as_query_engine(llm=llm, similarity_top_k=TOP_K, response_mode=mode, streaming=True)
    text = "".join(engine.query(QUESTION).response_gen)
    assert_found(llm, "run")
    assert text == str(index.as_query_engine(llm=llm, similarity_top_k=TOP_K, response_mode=mode).query(QUESTION))


async def test_async_streaming_query_engine_finds_the_documents(llm, index):
    response = await index.as_query_engine(llm=llm, similarity_top_k=TOP_K, streaming=True).aquery(QUESTION)
    assert [token async for token in response.async_response_gen()]
    assert_found(llm, "run")


def test_a_stream_read_in_another_thread_finds_the_documents(make_llm, index):
    llm = make_llm(on_missing="raise")
    response = index.as_query_engine(llm=llm, similarity_top_k=TOP_K, streaming=True).query(QUESTION)

    def read() -> None:
        assert "".join(response.response_gen)
        assert_found(llm, "run")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(read).result()


def test_a_stream_of_several_calls_reports_what_the_last_lacks(make_llm, index):
    llm = make_llm(context_window=700)
    engine = index.as_query_engine(llm=llm, similarity_top_k=16, streaming=True)
    with pytest.warns(UserWarning, match="larger context_window"):
        list(engine.query(QUESTION).response_gen)
    report = llm.last_report
    assert report is not None
    assert 0 < report["n_found"] < report["n_expected"] == 16
    assert "of the 16 documents" in report["reason"]


def test_later_prompt_without_documents_expects_none(llm, index):
    index.as_query_engine(llm=llm, similarity_top_k=TOP_K).query(QUESTION)
    report = llm.complete("Say hello.").additional_kwargs["ragbias"]
    assert (report["source"], report["n_expected"]) == ("none", 0)


def test_later_retrieval_wins_over_the_synthesis_before_it(llm, index):
    index.as_query_engine(llm=llm, similarity_top_k=2).query(QUESTION)
    nodes = index.as_retriever(similarity_top_k=TOP_K).retrieve(QUESTION)
    prompt = "\n\n".join(node.get_content() for node in nodes)
    report = llm.complete(f"{prompt}\n\n{QUESTION}").additional_kwargs["ragbias"]
    assert (report["source"], report["n_found"]) == ("registry", TOP_K)


def test_spans_cover_the_documents_with_their_metadata(llm, index):
    engine = index.as_query_engine(llm=llm, similarity_top_k=TOP_K)
    response = engine.query(QUESTION)
    report = llm.last_report
    assert report is not None
    lengths = [len(llm.lm.tokenizer(node.get_content(MetadataMode.LLM))["input_ids"]) for node in response.source_nodes]
    assert all(end - begin >= length - 1 for (begin, end), length in zip(report["spans"], lengths, strict=True))


def test_pine_answers_alike_in_all_orders_and_none_does_not(make_llm, index):
    answers: dict[str, set[str]] = {}
    for method in ("pine", "none"):
        llm = make_llm(method=method, max_new_tokens=24)
        for reorder in ([], [Reverse()]):
            engine = index.as_query_engine(llm=llm, similarity_top_k=TOP_K, node_postprocessors=reorder)
            answers.setdefault(method, set()).add(str(engine.query(QUESTION)))
    assert len(answers["pine"]) == 1
    assert len(answers["none"]) == 2


@pytest.mark.parametrize("mode", ["context", "condense_plus_context"])
def test_chat_engine_finds_the_documents_on_every_turn(llm, index, mode):
    engine = index.as_chat_engine(chat_mode=mode, llm=llm, similarity_top_k=TOP_K)
    for question in (QUESTION, "And what is the motto?"):
        engine.chat(question)
        assert_found(llm, "run")


@pytest.mark.parametrize("mode", ["context", "condense_plus_context"])
async def test_async_chat_engine_finds_the_documents(llm, index, mode):
    await index.as_chat_engine(chat_mode=mode, llm=llm, similarity_top_k=TOP_K).achat(QUESTION)
    assert_found(llm, "run")


def test_streaming_chat_engine_finds_the_documents(make_llm, index):
    llm = make_llm(on_missing="raise")
    response = index.as_chat_engine(chat_mode="context", llm=llm, similarity_top_k=TOP_K).stream_chat(QUESTION)
    assert "".join(response.response_gen)
    assert len(response.source_nodes) == TOP_K


def test_documents_over_several_calls_are_found_and_reported(make_llm, index):
    llm = make_llm(context_window=700, is_chat_model=False)
    with pytest.warns(UserWarning, match="larger context_window"):
        index.as_query_engine(llm=llm, similarity_top_k=16).query(QUESTION)
    report = llm.last_report
    assert report is not None
    assert 0 < report["n_found"] < report["n_expected"] == 16


def test_retriever_results_in_a_custom_prompt_are_found(llm, index):
    nodes = index.as_retriever(similarity_top_k=TOP_K).retrieve(QUESTION)
    context = "\n\n".join(node.get_content() for node in nodes)
    report = llm.complete(f"Context:\n{context}\n\n{QUESTION}").additional_kwargs["ragbias"]
    assert (report["source"], report["n_found"]) == ("registry", TOP_K)


def test_documents_with_blank_lines_stay_whole(llm, make_index, corpus):
    pairs = zip(corpus[:3], corpus[3:6], strict=True)
    index = make_index([TextNode(text=f"{one.text}\n\n{two.text}") for one, two in pairs])
    index.as_query_engine(llm=llm, similarity_top_k=3).query(QUESTION)
    assert_found(llm, "run", 3)


@pytest.mark.parametrize("mode", ["refine", "accumulate"])
def test_one_node_by_design_is_no_missing_document(make_llm, index, mode):
    llm, reports = make_llm(on_missing="raise"), []

    class Kept(BaseEventHandler):
        def handle(self, event: BaseEvent, **_: object) -> None:
            if isinstance(event, LLMChatEndEvent):
                reports.append(event.response.additional_kwargs["ragbias"])

    root = get_dispatcher()
    root.event_handlers = [*root.event_handlers, Kept()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", MissingDocumentsWarning)
            index.as_query_engine(llm=llm, similarity_top_k=TOP_K, response_mode=mode).query(QUESTION)
    finally:
        root.event_handlers = root.event_handlers[:-1]
    assert [(each["method_ran"], each["n_found"], each["n_expected"]) for each in reports] == [("none", 1, 1)] * 4
    assert {each["reason"] for each in reports} == {"one document found, so there is no order to debias"}
