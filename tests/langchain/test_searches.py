"""Direct searches of vector stores are recorded as retrievals, and their results are unchanged."""

import inspect
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import MagicMock

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, dynamic_prompt
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from langchain_ragbias import ChatRagBias, install_listener, uninstall_listener
from langchain_ragbias.listener import listener

QUESTION = "What is the passphrase?"
TEXTS = ["The gate of the mill is red.", "The wall of the hall is blue.", "The tower is emerald green."]
SEARCHES = ["similarity_search", "similarity_search_with_score", "max_marginal_relevance_search"]
SEARCHES += ["similarity_search_by_vector", "max_marginal_relevance_search_by_vector"]


@pytest.fixture(scope="module")
def store() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_texts(TEXTS, DeterministicFakeEmbedding(size=8))


def retrieved() -> list[set[str]]:
    registry = listener.runs.retrievals.registry()
    return [] if registry is None else [set(texts) for texts in registry.candidates()]


def texts(found) -> list[str]:
    return [(each[0] if isinstance(each, tuple) else each).page_content for each in found]


def test_the_documents_of_langchains_own_rag_tutorial_are_found(lm, index):
    """https://docs.langchain.com/oss/python/langchain/rag, "RAG chains"."""
    orders = []

    def report(order: int) -> dict:
        @dynamic_prompt
        def prompt_with_context(request: ModelRequest) -> str:
            found = index.similarity_search(request.state["messages"][-1].text, k=4)[::order]
            orders.append(texts(found))
            context = "\n\n".join(each.page_content for each in found)
            return f"You are a helpful assistant. Use the following context in your response:\n\n{context}"

        agent = create_agent(ChatRagBias(lm=lm, max_tokens=8), tools=[], middleware=[prompt_with_context])
        answer = agent.invoke({"messages": [HumanMessage(QUESTION)]})["messages"][-1]
        return {**answer.response_metadata["ragbias"], "answer": answer.text}

    reports = [report(1), report(-1)]
    assert orders[0] == orders[1][::-1]
    assert reports[0]["answer"] == reports[1]["answer"]
    for each in reports:
        assert (each["method_ran"], each["source"], each["n_found"], each["reason"]) == ("pine", "run", 4, "")


@pytest.mark.parametrize("name", SEARCHES)
async def test_each_search_is_one_retrieval_whatever_it_calls(store, name):
    query = store.embeddings.embed_query(QUESTION) if name.endswith("by_vector") else QUESTION
    found = getattr(store, name)(query, k=2)
    assert retrieved() == [set(texts(found))]
    assert len(await getattr(store, f"a{name}")(query, k=3)) == 3
    assert retrieved() == [set(TEXTS), set(texts(found))]


def test_pairs_with_scores_are_one_retrieval(index):
    found = index.similarity_search_with_relevance_scores(QUESTION, k=3)
    assert retrieved() == [set(texts(found))]


def test_stores_of_every_class_are_seen_also_of_later_ones():
    class Later(VectorStore):
        def similarity_search(self, query, k=4, **kwargs):
            return [Document(query), *self.similarity_search_by_vector([0.0])]

        def similarity_search_by_vector(self, embedding, k=4, **kwargs):
            return [Document("found by vector")]

        def add_texts(self, texts, metadatas=None, **kwargs):
            raise NotImplementedError

        @classmethod
        def from_texts(cls, texts, embedding, metadatas=None, **kwargs):
            raise NotImplementedError

    Later().similarity_search("found by words")
    assert retrieved() == [{"found by words", "found by vector"}]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_what_a_retriever_searches_is_not_what_it_retrieves(store, asynchronous):
    class Best(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            return store.similarity_search(query, k=3)[:1]

    found = []
    for retriever in (Best(), store.as_retriever(search_kwargs={"k": 2})):
        found += [await retriever.ainvoke(QUESTION) if asynchronous else retriever.invoke(QUESTION)]
        assert retrieved() == [set(texts(each)) for each in found[::-1]]
    assert [len(each) for each in found] == [1, 2]


def test_a_search_looks_and_fails_as_ever(store):
    method = store.similarity_search
    assert inspect.signature(method) == inspect.signature(InMemoryVectorStore.similarity_search.__get__(store))
    assert inspect.iscoroutinefunction(store.asimilarity_search)
    assert (method.__name__, method.__self__, method == store.similarity_search) == ("similarity_search", store, True)
    assert pickle.loads(pickle.dumps(InMemoryVectorStore.similarity_search)) is InMemoryVectorStore.similarity_search
    with pytest.raises(ValueError, match="NaN"), np.errstate(invalid="ignore"):
        store.similarity_search_by_vector([0.0] * 8)
    store.similarity_search(QUESTION, k=2)
    assert [len(each) for each in retrieved()] == [2]


def test_a_search_that_somebody_replaced_is_left_alone(store):
    store.similarity_search = MagicMock(return_value=["mine"])
    try:
        assert store.similarity_search(QUESTION) == ["mine"]
        assert isinstance(store.similarity_search, MagicMock)
    finally:
        del store.similarity_search


def test_a_failure_of_the_listener_fails_no_search(store, monkeypatch):
    def broken(texts):
        raise KeyError("a secret text")

    monkeypatch.setattr(listener.runs.retrievals, "add", broken)
    assert len(store.similarity_search(QUESTION, k=2)) == 2
    assert listener.runs.get(None).failure == "the listener failed in a direct search: KeyError"


def test_the_base_class_is_as_before_once_it_is_uninstalled(store):
    assert "__getattribute__" in VectorStore.__dict__
    for take_off in (uninstall_listener, lambda: install_listener(searches=False)):
        install_listener()
        search = store.similarity_search
        take_off()
        assert "__getattribute__" not in VectorStore.__dict__
        assert store.similarity_search.__func__ is InMemoryVectorStore.similarity_search
        search(QUESTION)
        assert retrieved() == []
    install_listener()
    install_listener()
    store.similarity_search(QUESTION, k=2)
    assert [len(each) for each in retrieved()] == [2]


def test_threads_search_and_install_at_once(store):
    stop, wrong = threading.Event(), []

    def search(_: int) -> None:
        while not stop.is_set():
            if len(store.similarity_search(QUESTION, k=2)) != 2:
                wrong.append(True)

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search, number) for number in range(4)]
        for _ in range(200):
            install_listener(searches=False)
            install_listener()
        stop.set()
    assert [each.exception() for each in searches] == [None] * 4
    assert not wrong
