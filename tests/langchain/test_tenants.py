"""Users of one process are isolated from each other, while each user's steps share retrievals."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda, RunnableParallel

from langchain_ragbias import ChatRagBias
from langchain_ragbias.listener import MAX_DOCUMENTS, listener, parent_run

QUESTION = "What is the passphrase?"
pytestmark = pytest.mark.filterwarnings("ignore::langchain_ragbias.MissingDocumentsWarning")


@pytest.fixture
def texts(retriever) -> list[str]:
    """The texts that a question retrieves, from another context."""
    return copy_context().run(lambda: [each.page_content for each in retriever.invoke(QUESTION)])


def context_of(found) -> str:
    return "\n\n".join(each.page_content for each in found)


def report(chat: ChatRagBias, prompt) -> dict:
    return chat.invoke(prompt).response_metadata["ragbias"]


def prompts(texts: list[str]) -> list:
    """Prompts that guess the documents of others: flat, as a question, and in a system message."""
    joined = "\n\n".join(texts)
    return [
        f"Context:\n\n{joined}\n\n{QUESTION}",
        [SystemMessage(f"Rules:\n\n{joined}\n\nObey."), HumanMessage(QUESTION)],
        f"{texts[0]}\n\n{QUESTION}",
    ]


def test_a_thread_learns_nothing_of_what_another_retrieved(chat, retriever, texts):
    ready, done = threading.Event(), threading.Event()

    def tenant_a() -> int:
        found = retriever.invoke(QUESTION)
        ready.set()
        assert done.wait(60)
        return report(chat, f"Context:\n\n{context_of(found)}\n\n{QUESTION}")["n_found"]

    def tenant_b() -> list[dict]:
        assert ready.wait(60)
        reports = [report(chat, prompt) for prompt in prompts(texts)]
        done.set()
        return reports

    alone = copy_context().run(lambda: [report(chat, prompt) for prompt in prompts(texts)])
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(tenant_a), pool.submit(tenant_b)
        assert second.result() == alone
        assert first.result() == len(texts)


async def test_a_task_learns_nothing_of_what_another_retrieved(chat, retriever, texts):
    ready, done = asyncio.Event(), asyncio.Event()

    async def tenant_a() -> int:
        found = await retriever.ainvoke(QUESTION)
        ready.set()
        await done.wait()
        answer = await chat.ainvoke(f"Context:\n\n{context_of(found)}\n\n{QUESTION}")
        return answer.response_metadata["ragbias"]["n_found"]

    async def tenant_b() -> list[dict]:
        await ready.wait()
        reports = [(await chat.ainvoke(prompt)).response_metadata["ragbias"] for prompt in prompts(texts)]
        done.set()
        return reports

    alone = copy_context().run(lambda: [report(chat, prompt) for prompt in prompts(texts)])
    assert await asyncio.gather(tenant_a(), tenant_b()) == [len(texts), alone]


@pytest.mark.parametrize("at_startup", ["retriever", "chain", "dropped stream", "model"])
async def test_what_a_server_did_at_its_start_joins_no_requests(chat, retriever, rag, texts, at_startup):
    """All requests run in copies of the server's initial context."""
    if at_startup == "retriever":
        retriever.invoke("Warm up.")
    elif at_startup == "model":
        chat.invoke("Warm up.")
    elif at_startup == "chain":
        rag(chat).invoke({"input": "Warm up."})
    else:
        next(rag(chat).stream({"input": "Warm up."})).keys()
    own = rag(chat)
    warm = copy_context().run(lambda: [each.page_content for each in retriever.invoke("Warm up.")])
    texts = [text for text in texts if text not in warm]

    async def tenant(prompt) -> tuple[str | None, dict | None]:
        before = (chat.last_report or {}).get("source")
        if prompt is None:
            await own.ainvoke({"input": QUESTION})
        else:
            await chat.ainvoke(prompt)
        return before, chat.last_report

    await asyncio.create_task(tenant(None))
    startup = (chat.last_report or {}).get("source")
    for prompt in prompts(texts):
        before, after = await asyncio.create_task(tenant(prompt))
        assert (before, after["source"], after["n_found"]) == (startup, "none", 0)


def test_a_list_that_one_passes_shows_in_no_report_of_another(chat):
    corpus = [Document(f"Room {number} has key k{number}.") for number in range(MAX_DOCUMENTS + 345)]

    def tenant_a() -> str:
        (RunnableLambda(lambda _: corpus) | RunnableLambda(len)).invoke("x")
        return report(chat, "Hello.")["reason"]

    def tenant_b() -> str:
        return report(chat, "Hello.")["reason"]

    assert "2345 documents in one list" in copy_context().run(tenant_a)
    assert "2345" not in copy_context().run(tenant_b)
    assert "2345" not in tenant_b()


def test_a_reused_worker_separates_requests_by_context(chat, retriever, texts):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(copy_context().run, retriever.invoke, QUESTION).result()
        after = pool.submit(copy_context().run, report, chat, prompts(texts)[0]).result()
    assert (after["source"], after["n_found"]) == ("none", 0)


# one user's own steps


def assert_found(about: dict, count: int = 5) -> None:
    assert (about["source"], about["n_found"]) == ("registry", count), about


def test_steps_in_one_thread_go_together(chat, retriever, index):
    searches = {
        "retriever": lambda: retriever.invoke(QUESTION),
        "chain": lambda: (RunnableLambda(lambda each: each) | retriever).invoke(QUESTION),
        "batch of a chain": lambda: (RunnableLambda(lambda each: each) | retriever).batch([QUESTION, "Which?"])[0],
        "parallel": lambda: RunnableParallel(docs=retriever, other=retriever).invoke(QUESTION)["docs"],
        "stream": lambda: [each for part in (RunnableLambda(str) | retriever).stream(QUESTION) for each in part],
        "tool": lambda: retriever.as_tool(name="look", description="Looks.").invoke(QUESTION),
        "search": lambda: index.similarity_search(QUESTION, k=5),
    }
    for search in searches.values():

        def steps(search=search) -> dict:
            return report(chat, f"Context:\n\n{context_of(search())}\n\n{QUESTION}")

        assert_found(copy_context().run(steps))


async def test_steps_in_one_task_go_together(chat, retriever, index):
    for search in (
        retriever.ainvoke,
        (RunnableLambda(lambda each: each) | retriever).ainvoke,
        lambda question: index.asimilarity_search(question, k=5),
    ):

        async def steps(search=search) -> dict:
            prompt = f"Context:\n\n{context_of(await search(QUESTION))}\n\n{QUESTION}"
            return (await chat.ainvoke(prompt)).response_metadata["ragbias"]

        assert_found(await asyncio.create_task(steps()))


def test_threads_that_continue_a_caller_know_its_retrievals(chat, retriever):
    found = retriever.invoke(QUESTION)
    prompt = f"Context:\n\n{context_of(found)}\n\n{QUESTION}"
    for answer in chat.batch([prompt, prompt]):
        assert_found(answer.response_metadata["ragbias"])


async def test_steps_that_a_chain_runs_side_by_side_go_together(chat, retriever):
    async def answer(question: str) -> dict:
        first, second = await asyncio.gather(retriever.ainvoke(question), retriever.ainvoke("Which gate is red?"))
        found = {each.page_content: each for each in [*first, *second]}.values()
        return (await chat.ainvoke(f"Context:\n\n{context_of(found)}\n\n{question}")).response_metadata["ragbias"]

    about = await RunnableLambda(answer).ainvoke(QUESTION)
    assert (about["source"], about["method_ran"]) == ("run", "pine")
    assert about["n_found"] == about["n_expected"] > 5


def test_retrievals_of_a_run_are_in_the_order_of_time(retriever):
    seen = []

    def steps(question: str) -> str:
        retriever.invoke("Which gate is red?")
        latest = [each.page_content for each in retriever.invoke(question)]
        (RunnableLambda(lambda each: each)).invoke({"context": latest[::-1]})
        seen.extend([latest, listener.runs.get(parent_run(None)).latest_first()])
        return question

    RunnableLambda(steps).invoke(QUESTION)
    latest, retrievals = seen
    assert sorted(retrievals[0]) == sorted(latest)
    assert len(retrievals) == 2
    assert not set(retrievals[0]) & set(retrievals[1])
