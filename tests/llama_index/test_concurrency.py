"""Concurrent queries on one LLM find their own documents and give the same answers as alone."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.llms.ragbias import RagBiasLLM

from ragbias.lm import DebiasedLM
from ragbias.models.tiny.world import Passage, held_out_corpus, held_out_questions
from support.scripted import RecordingLM

CLIENTS = 8
MANY = 50
DOCUMENTS = 3


@pytest.fixture(scope="module")
def indexes(make_index: Callable[..., VectorStoreIndex], corpus: list[Passage]) -> list[VectorStoreIndex]:
    """A separate index for each client."""
    shares = [corpus[start * DOCUMENTS : (start + 1) * DOCUMENTS] for start in range(CLIENTS)]
    return [make_index([TextNode(text=passage.text) for passage in share]) for share in shares]


def engines(llm: RagBiasLLM, indexes: list[VectorStoreIndex], streaming: bool) -> list[BaseQueryEngine]:
    return [index.as_query_engine(llm=llm, similarity_top_k=DOCUMENTS, streaming=streaming) for index in indexes]


def ask(llm: RagBiasLLM, engine: BaseQueryEngine, client: int) -> tuple[str, int]:
    response = engine.query(f"What is the motto of client {client}?")
    text = "".join(response.response_gen) if hasattr(response, "response_gen") else str(response)
    assert llm.last_report is not None
    return text, llm.last_report["n_found"]


@pytest.mark.parametrize("streaming", [False, True])
def test_threads(llm, indexes, streaming):
    clients = engines(llm, indexes, streaming)
    alone = [ask(llm, engine, client) for client, engine in enumerate(clients)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(lambda client: ask(llm, clients[client], client), range(CLIENTS)))
    assert together == alone
    assert [found for _, found in together] == [DOCUMENTS] * CLIENTS


@pytest.mark.parametrize("streaming", [False, True])
async def test_asyncio(llm, indexes, streaming):
    clients = engines(llm, indexes, streaming)
    alone = [ask(llm, engine, client)[0] for client, engine in enumerate(engines(llm, indexes, False))]

    async def aask(client: int) -> tuple[str, int]:
        response = await clients[client].aquery(f"What is the motto of client {client}?")
        text = "".join([token async for token in response.async_response_gen()]) if streaming else str(response)
        assert llm.last_report is not None
        return text, llm.last_report["n_found"]

    together = await asyncio.gather(*map(aask, range(CLIENTS)))
    assert together == [(text, DOCUMENTS) for text in alone]


def test_two_methods_on_one_model_do_not_mix(make_llm, indexes):
    llms = [make_llm(method=method, max_new_tokens=16) for method in ("pine", "none")] * (CLIENTS // 2)
    clients = [engines(llm, indexes, False)[client] for client, llm in enumerate(llms)]
    alone = [ask(llms[client], clients[client], client) for client in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(lambda client: ask(llms[client], clients[client], client), range(CLIENTS)))
    assert together == alone


# Fifty queries on one index, whose retrieved documents overlap


Answer = tuple[str, set[str]]  # and the retrieved documents


@pytest.fixture(scope="module")
def shared(make_index: Callable[..., VectorStoreIndex]) -> tuple[VectorStoreIndex, list[str]]:
    """An index and fifty questions about it."""
    passages = held_out_corpus(60, seed=2)
    index = make_index([TextNode(text=passage.text, metadata={"title": passage.title}) for passage in passages])
    return index, [each.question for each in held_out_questions(passages, MANY, seed=2)]


@pytest.fixture(scope="module")
def alone(lm: DebiasedLM, shared: tuple[VectorStoreIndex, list[str]]) -> list[Answer]:
    """The answers to the fifty questions, one after the other."""
    index, questions = shared
    recording, engine = recorded_engine(lm, index, streaming=False)
    responses = [engine.query(question) for question in questions]
    answers = [(str(response), texts_of(response)) for response in responses]
    assert len({text for text, _ in answers}) > MANY // 2
    assert_right_documents(recording, questions, answers)
    return answers


def recorded_engine(lm: DebiasedLM, index: VectorStoreIndex, streaming: bool) -> tuple[RecordingLM, BaseQueryEngine]:
    recording = RecordingLM(lm)
    llm = RagBiasLLM(lm=recording, max_new_tokens=6)
    return recording, index.as_query_engine(llm=llm, similarity_top_k=4, streaming=streaming)


def texts_of(response: RESPONSE_TYPE) -> set[str]:
    return {node.get_content(MetadataMode.LLM).strip() for node in response.source_nodes}


def assert_right_documents(recording: RecordingLM, questions: list[str], answers: list[Answer]) -> None:
    """Assert that each prompt's found documents are exactly those retrieved for its question."""
    assert len(recording.seen) == MANY
    retrieved = dict(zip(questions, (texts for _, texts in answers), strict=True))
    for prompt, found in recording.seen:
        (question,) = [question for question in retrieved if f"Query: {question}\n" in prompt]
        assert {prompt[begin:end].strip() for begin, end in found.spans} == retrieved[question]


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
def test_fifty_threads(lm, shared, alone, streaming):
    index, questions = shared
    recording, engine = recorded_engine(lm, index, streaming)

    def answer(question: str) -> Answer:
        response = engine.query(question)
        text = "".join(response.response_gen) if streaming else str(response)
        return text, texts_of(response)

    with ThreadPoolExecutor(MANY) as pool:
        together = list(pool.map(answer, questions))
    assert together == alone
    assert_right_documents(recording, questions, together)


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
async def test_fifty_tasks(lm, shared, alone, streaming):
    index, questions = shared
    recording, engine = recorded_engine(lm, index, streaming)

    async def answer(question: str) -> Answer:
        response = await engine.aquery(question)
        text = "".join([token async for token in response.async_response_gen()]) if streaming else str(response)
        return text, texts_of(response)

    together = await asyncio.gather(*map(answer, questions))
    assert together == alone
    assert_right_documents(recording, questions, together)
