"""Many queries at once on one LLM: each finds its own documents and gives the answer that it gives alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.schema import TextNode
from llama_index.llms.ragbias import RagBiasLLM

from ragbias.tiny.world import Passage

CLIENTS = 8
DOCUMENTS = 3


@pytest.fixture(scope="module")
def indexes(make_index: Callable[..., VectorStoreIndex], corpus: list[Passage]) -> list[VectorStoreIndex]:
    """An index of its own for each client."""
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
def test_threads(llm: RagBiasLLM, indexes: list[VectorStoreIndex], streaming: bool) -> None:
    clients = engines(llm, indexes, streaming)
    alone = [ask(llm, engine, client) for client, engine in enumerate(clients)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(lambda client: ask(llm, clients[client], client), range(CLIENTS)))
    assert together == alone
    assert [found for _, found in together] == [DOCUMENTS] * CLIENTS


@pytest.mark.parametrize("streaming", [False, True])
async def test_asyncio(llm: RagBiasLLM, indexes: list[VectorStoreIndex], streaming: bool) -> None:
    clients = engines(llm, indexes, streaming)
    alone = [ask(llm, engine, client)[0] for client, engine in enumerate(engines(llm, indexes, False))]

    async def aask(client: int) -> tuple[str, int]:
        response = await clients[client].aquery(f"What is the motto of client {client}?")
        text = "".join([token async for token in response.async_response_gen()]) if streaming else str(response)
        assert llm.last_report is not None
        return text, llm.last_report["n_found"]

    together = await asyncio.gather(*map(aask, range(CLIENTS)))
    assert together == [(text, DOCUMENTS) for text in alone]


def test_two_methods_on_one_model_do_not_mix(
    make_llm: Callable[..., RagBiasLLM], indexes: list[VectorStoreIndex]
) -> None:
    llms = [make_llm(debias=method, max_new_tokens=16) for method in ("pine", "none")] * (CLIENTS // 2)
    clients = [engines(llm, indexes, False)[client] for client, llm in enumerate(llms)]
    alone = [ask(llms[client], clients[client], client) for client in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(lambda client: ask(llms[client], clients[client], client), range(CLIENTS)))
    assert together == alone
