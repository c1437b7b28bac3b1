"""Retrievals in other threads and tasks reach the task that started them, or a warning is raised."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from starlette.concurrency import run_in_threadpool

from langchain_ragbias import ChatRagBias, MissingDocumentsWarning
from ragbias.errors import NoDocumentsError
from support.prompts import DOCUMENTS

Search = Callable[[InMemoryVectorStore], Awaitable[list[Document]]]
WARNED = pytest.mark.filterwarnings("error::langchain_ragbias.MissingDocumentsWarning")


@pytest.fixture(scope="module")
def store() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_texts(DOCUMENTS, DeterministicFakeEmbedding(size=8))


def prompt(documents: list[Document]) -> str:
    joined = "\n\n".join(each.page_content for each in documents)
    return f"Context:\n\n{joined}\n\nWhich bridge is green?"


async def in_gather(store: InMemoryVectorStore) -> list[Document]:
    (documents,) = await asyncio.gather(store.asimilarity_search("x", k=3))
    return documents


SEARCHES: dict[str, Search] = {
    "to_thread": lambda store: asyncio.to_thread(store.similarity_search, "x", k=3),
    "run_in_threadpool": lambda store: run_in_threadpool(store.similarity_search, "x", k=3),
    "gather": in_gather,
    "create_task": lambda store: asyncio.create_task(store.asimilarity_search("x", k=3)),
    "wait_for": lambda store: asyncio.wait_for(store.asimilarity_search("x", k=3), 30),
    "to_thread of a retriever": lambda store: asyncio.to_thread(store.as_retriever(search_kwargs={"k": 3}).invoke, "x"),
    "wait_for of a retriever": lambda store: asyncio.wait_for(
        store.as_retriever(search_kwargs={"k": 3}).ainvoke("x"), 30
    ),
}


@WARNED
@pytest.mark.parametrize("name", SEARCHES)
async def test_a_search_elsewhere_reaches_the_task_that_awaits_it(chat, store, name):
    for _ in range(2):
        documents = await SEARCHES[name](store)
        report = (await chat.ainvoke(prompt(documents))).response_metadata["ragbias"]
        assert (report["method_ran"], report["source"], report["n_found"]) == ("pine", "registry", 3)


@WARNED
async def test_a_task_that_searched_before_sees_its_functions(chat, store):
    async def retrieve() -> list[Document]:
        return await asyncio.to_thread(lambda: store.similarity_search("x", k=3))

    await asyncio.to_thread(store.similarity_search, "y", k=1)
    report = (await chat.ainvoke(prompt(await asyncio.create_task(retrieve())))).response_metadata["ragbias"]
    assert (report["method_ran"], report["n_found"]) == ("pine", 3)


async def in_executor(search: Callable[[], list[Document]]) -> list[Document]:
    return await asyncio.get_running_loop().run_in_executor(None, search)


async def in_task(search: Callable[[], list[Document]]) -> list[Document]:
    async def retrieve() -> list[Document]:
        return search()

    return await asyncio.create_task(retrieve())


@pytest.mark.parametrize("way", [asyncio.to_thread, run_in_threadpool, in_task, in_executor])
async def test_a_function_in_a_fresh_task_warns_and_is_seen_later(chat, store, way):
    """Only a search in an executor that copies no context stays unknown."""
    with pytest.warns(MissingDocumentsWarning, match="pass documents="):
        await chat.ainvoke(prompt(await way(lambda: store.similarity_search("x", k=3))))
    answer = await chat.ainvoke(prompt(await way(lambda: store.similarity_search("x", k=3))))
    assert answer.response_metadata["ragbias"]["n_found"] == (0 if way is in_executor else 3)


@pytest.mark.parametrize("known", [1, 2])
async def test_unknown_documents_beside_known_ones_run_plain(chat, store, known):
    """An earlier turn retrieved some of them. The answer would depend on the order of the others."""
    await asyncio.to_thread(store.similarity_search, "x", k=known)
    documents = await in_executor(lambda: store.similarity_search("x", k=3))
    with pytest.warns(
        MissingDocumentsWarning, match=f"located 0 of 3 .*{3 - known} documents in the prompt .* another thread"
    ):
        answer = await chat.ainvoke(prompt(documents))
    report = answer.response_metadata["ragbias"]
    assert (report["method_ran"], report["n_found"], report["n_expected"]) == ("none", 0, 3)
    strict = chat.model_copy(update={"on_missing": "raise"})
    with pytest.raises(NoDocumentsError, match="pass documents="):
        await strict.ainvoke(prompt(documents))
    given = await strict.ainvoke(prompt(documents), documents=documents)
    assert given.response_metadata["ragbias"]["n_found"] == 3


async def test_sibling_tasks_do_not_see_each_others_searches(chat, store):
    """A server may handle one user per task."""
    documents = await asyncio.create_task(store.asimilarity_search("x", k=3))
    with pytest.warns(MissingDocumentsWarning):
        answer = await asyncio.create_task(chat.ainvoke(prompt(documents)))
    assert answer.response_metadata["ragbias"]["n_found"] == 0


def in_a_thread(store: InMemoryVectorStore) -> list[Document]:
    results: list[list[Document]] = []
    thread = threading.Thread(target=lambda: results.append(store.similarity_search("x", k=3)))
    thread.start()
    thread.join()
    return results[0]


def in_a_pool(store: InMemoryVectorStore) -> list[Document]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(store.similarity_search, "x", k=3).result()


@pytest.mark.parametrize("search", [in_a_thread, in_a_pool])
def test_a_search_without_the_context_warns_after_a_success_too(chat, store, search):
    chat.invoke(prompt(store.similarity_search("x", k=3)))
    with pytest.warns(MissingDocumentsWarning, match="pass documents=") as seen:
        chat.bind(stop=["x"]).invoke(prompt([Document(each.page_content.upper()) for each in search(store)]))
    assert [each.filename for each in seen if each.category is MissingDocumentsWarning] == [__file__]


@pytest.mark.parametrize("rewrite", [lambda text: text[:12] + "...", lambda text: text.replace(" ", "  ")])
def test_rewritten_texts_outside_a_chain_warn_after_a_success(chat, store, rewrite):
    documents = store.similarity_search("x", k=3)
    chat.invoke(prompt(documents))
    with pytest.warns(MissingDocumentsWarning, match="no recent retrieval was recognised"):
        chat.invoke(prompt([Document(rewrite(each.page_content)) for each in documents]))


def test_a_sync_dependency_of_fastapi_warns_and_documents_help(lm, store):
    fastapi = pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    app = fastapi.FastAPI()
    chat = ChatRagBias(lm=lm, max_tokens=2)

    def retrieved() -> list[Document]:
        return store.similarity_search("x", k=3)

    @app.get("/{how}")
    async def answer(how: str, documents=fastapi.Depends(retrieved)) -> int:  # noqa: B008 - as FastAPI has it
        given = {"documents": documents} if how == "given" else {}
        message = await chat.ainvoke(prompt(documents), **given)
        return message.response_metadata["ragbias"]["n_found"]

    with TestClient(app) as client:
        assert client.get("/given").json() == 3
        with pytest.warns(MissingDocumentsWarning, match="pass documents="):
            assert client.get("/alone").json() == 0
