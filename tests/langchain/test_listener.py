"""The listener is passive: it keeps nothing of finished runs, hides no failure, and can be removed."""

import gc
import subprocess
import sys
import time
from uuid import uuid4

import pytest
from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda

from langchain_ragbias import install_listener, uninstall_listener
from langchain_ragbias.listener import (
    MAX_DOCUMENTS,
    RetrievalCallbackHandler,
    document_lists,
    listener,
    parent_run,
)
from ragbias.boundaries.sources import MAX_AGE
from ragbias.frameworks.run_state import MAX_RUNS


@pytest.fixture
def own() -> RetrievalCallbackHandler:
    """A handler that no LangChain run calls."""
    handler = RetrievalCallbackHandler()
    handler.installed = True
    return handler


def attached() -> list[bool]:
    managers = (CallbackManager.configure(), AsyncCallbackManager.configure())
    return [any(handler is listener for handler in manager.handlers) for manager in managers]


def test_it_is_attached_by_importing_the_package():
    code = (
        "import langchain_ragbias; from langchain_core.callbacks import CallbackManager; "
        "assert [type(h).__name__ for h in CallbackManager.configure().handlers] == ['RetrievalCallbackHandler']"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})


def test_it_can_be_taken_off_and_put_on_again(chat, rag):
    assert attached() == [True, True]
    install_listener()
    handlers = CallbackManager.configure().handlers
    assert sum(handler is listener for handler in handlers) == 1
    uninstall_listener()
    assert attached() == [False, False]
    rag(chat).invoke({"input": "Which?"})
    assert not listener.runs.retrievals.registry()
    uninstall_listener()
    install_listener()
    rag(chat).invoke({"input": "Which?"})
    assert chat.last_report["source"] == "run"


def test_it_holds_nothing_of_runs_that_ended(own):
    for number in range(10_000):
        root, child = uuid4(), uuid4()
        own.on_chain_start({}, {"input": "x"}, run_id=root)
        own.on_retriever_start({}, "x", run_id=child, parent_run_id=root)
        own.on_retriever_end([Document(f"document {number}")], run_id=child, parent_run_id=root)
        own.on_chain_end({"answer": "y"}, run_id=root)
    assert (own.runs._runs, own.runs._roots, own._prompts) == ({}, {}, {})
    assert len(own.runs.retrievals.registry()) <= 2048


def test_runs_that_never_end_are_bounded(own):
    for _ in range(MAX_RUNS * 3):
        root = uuid4()
        own.on_chain_start({}, {}, run_id=root)
        own.on_llm_start({}, ["prompt"], run_id=uuid4(), parent_run_id=root)
    assert len(own.runs._runs) <= MAX_RUNS
    assert len(own.runs._roots) <= 2 * MAX_RUNS
    assert len(own._prompts) <= MAX_RUNS


def test_runs_that_were_cancelled_are_forgotten_with_age(own, monkeypatch):
    old, going_on = uuid4(), uuid4()
    for root in (old, going_on):
        own.on_chain_start({}, {"context": [Document("one"), Document("two")]}, run_id=root)
    now = time.monotonic() + MAX_AGE - 1
    monkeypatch.setattr("ragbias.frameworks.run_state.time.monotonic", lambda: now)
    own.on_llm_start({}, ["prompt"], run_id=uuid4(), parent_run_id=going_on)
    assert len(own.runs._runs) == 2
    now += 2
    own.on_chain_start({}, {}, run_id=uuid4())
    assert own.runs.get(old).latest_first() == []
    assert own.runs.get(going_on).latest_first() == [["one", "two"]]
    assert old not in own.runs._roots


def test_nothing_is_held_of_real_chains(chat, rag):
    chain = rag(chat)
    chain.invoke({"input": "Which?"})
    list(chain.stream({"input": "Which?"}))
    dropped = chain.stream({"input": "Which?"})
    next(dropped)
    dropped.close()
    with pytest.raises(ZeroDivisionError):
        (chain | RunnableLambda(lambda _: 1 / 0)).invoke({"input": "Which?"})
    deadline = time.monotonic() + 5  # LangChain closes the runs of a dropped stream in threads of its own
    while listener.runs._runs and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert (listener.runs._runs, listener.runs._roots, listener._prompts) == ({}, {}, {})


@pytest.mark.filterwarnings("ignore::langchain_ragbias.MissingDocumentsWarning")
def test_a_failure_of_the_listener_shows_in_the_report(chat, rag, monkeypatch):
    def broken(texts):
        raise KeyError("a secret text")

    monkeypatch.setattr(listener.runs.retrievals, "add", broken)
    rag(chat).invoke({"input": "Which?"})
    assert "the listener failed in" in chat.last_report["reason"]
    assert "KeyError" in chat.last_report["reason"]
    assert "secret" not in chat.last_report["reason"]


def test_documents_are_collected_from_nested_values():
    documents = [Document("one"), Document("two")]
    state = {"question": "x", "context": {"found": documents}, "more": [{"docs": [Document("three")]}]}
    assert list(document_lists(state)) == [documents, [Document("three")]]
    assert list(document_lists("text")) == list(document_lists(None)) == []


class Everything(BaseRetriever):
    documents: list[Document]

    def _get_relevant_documents(self, query, *, run_manager):
        return self.documents


def test_no_document_of_a_retriever_is_left_out_however_many(completion):
    documents = [Document(f"Room {number} has key k{number}.") for number in range(MAX_DOCUMENTS + 1)]
    seen = []

    def look(found):
        seen.append([len(each) for each in listener.runs.get(parent_run(None)).latest_first()])
        return f"Context:\n\n{found[0].page_content}\n\n{found[-1].page_content}\n\nQuestion: which?\nAnswer:"

    (Everything(documents=documents) | RunnableLambda(look) | completion).invoke("Which?")
    assert seen == [[len(documents)]]
    assert (completion.last_report["source"], completion.last_report["n_found"]) == ("run", 2)


@pytest.mark.filterwarnings("ignore::langchain_ragbias.MissingDocumentsWarning")
def test_a_corpus_passed_through_a_chain_is_left_out(completion):
    corpus = [Document(f"Room {number} has key k{number}.") for number in range(MAX_DOCUMENTS + 1)]
    chain = RunnableLambda(lambda _: corpus) | RunnableLambda(lambda _: "Question: which?\nAnswer:") | completion
    chain.invoke("x")
    assert f"{MAX_DOCUMENTS + 1} documents in one list count as a corpus" in completion.last_report["reason"]


NUMBERS = [float(number) for number in range(1_000_000)]
VECTORS = [[float(number) for number in range(768)] for _ in range(1000)]


@pytest.mark.serial
@pytest.mark.parametrize(
    "value", [NUMBERS, VECTORS, [[number] for number in range(300_000)], {"a": VECTORS, "b": NUMBERS}]
)
def test_values_without_documents_cost_a_chain_next_to_nothing(value):
    chain = RunnableLambda(lambda each: each) | RunnableLambda(lambda each: each) | RunnableLambda(lambda each: each)

    def seconds():
        begin = time.process_time()
        chain.invoke(value)
        return time.process_time() - begin

    seconds()
    with_it = min(seconds() for _ in range(3))
    uninstall_listener()
    assert with_it - min(seconds() for _ in range(3)) < 0.05


def test_a_text_has_the_metadata_of_all_its_documents(own):
    root = uuid4()
    own.on_chain_start({}, {}, run_id=root)
    for metadata in ({"source": "a"}, {"source": "b"}, {"score": 0.5}):
        own._collect(root, [Document("one", metadata=metadata), Document("two")])
    own._collect(root, [Document("one", metadata={"source": "c"}), Document("one", metadata={"source": "d"})])
    ((two, one, again),) = own.runs.get(root).latest_first()
    assert (two, one, again) == ("two", "one", "one")
    fields = [value for name, value in one.fields if name in ("source", "score")]
    assert sorted(fields) == ["0.5", "a", "b", "c", "d"]


def test_metadata_in_runs_and_registry_is_bounded(own):
    root = uuid4()
    own.on_chain_start({}, {}, run_id=root)
    for number in range(500):
        huge = {f"key {i}": "x" * i for i in range(number, number + 50)} | {"vector": [0.1] * 1000}
        own._collect(root, [Document("always the same text", metadata=huge), Document(f"another text, {number}")])
    retrievals = own.runs.get(root).latest_first() + own.runs.retrievals.registry().candidates()
    texts = [text for each in retrievals for text in each]
    assert max(len(text.fields) for text in texts) <= 40
    assert max(sum(len(value) for _, value in text.fields) for text in texts) < 20_000
