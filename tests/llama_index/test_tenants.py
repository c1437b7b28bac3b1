"""Users of one process are isolated from each other, while each user's steps share retrievals."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex, get_response_synthesizer
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import NodeWithScore
from llama_index.llms.ragbias import RagBiasLLM

QUESTION = "What is the passphrase?"
TOP_K = 4
pytestmark = pytest.mark.filterwarnings("ignore::llama_index.llms.ragbias.MissingDocumentsWarning")


@pytest.fixture
def texts(index: VectorStoreIndex) -> list[str]:
    """The texts that a question retrieves, from another context."""
    return copy_context().run(lambda: [node.get_content() for node in retrieve(index)])


def retrieve(index: VectorStoreIndex) -> list[NodeWithScore]:
    return index.as_retriever(similarity_top_k=TOP_K).retrieve(QUESTION)


def prompt(texts: list[str]) -> str:
    return "Context:\n\n" + "\n\n".join(texts) + f"\n\n{QUESTION}"


def report(llm: RagBiasLLM, text: str) -> dict[str, Any]:
    about: dict[str, Any] = llm.complete(text).additional_kwargs["ragbias"]
    return about


def in_system(texts: list[str]) -> list[ChatMessage]:
    rules = ChatMessage(role=MessageRole.SYSTEM, content="Rules:\n\n" + "\n\n".join(texts) + "\n\nObey.")
    return [rules, ChatMessage(content=QUESTION)]


def test_a_thread_learns_nothing_of_what_another_retrieved(llm, index, texts):
    ready, done = threading.Event(), threading.Event()

    def tenant_a() -> int:
        found = [node.get_content() for node in retrieve(index)]
        ready.set()
        assert done.wait(60)
        return int(report(llm, prompt(found))["n_found"])

    def tenant_b() -> list[Any]:
        assert ready.wait(60)
        reports = [report(llm, prompt(texts)), llm.chat(in_system(texts)).additional_kwargs["ragbias"]]
        done.set()
        return reports

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(tenant_a), pool.submit(tenant_b)
        assert [(each["source"], each["n_found"], each["n_left_plain"]) for each in second.result()] == [
            ("none", 0, 0)
        ] * 2
        assert first.result() == TOP_K


@pytest.mark.parametrize("at_startup", ["nothing", "query", "unread stream"])
async def test_a_task_learns_nothing_of_what_another_retrieved(llm, index, texts, nodes, at_startup):
    """All requests run in copies of the server's initial context."""
    open_response = None
    others = [node for node in nodes if node.get_content() not in "".join(texts)]
    if at_startup != "nothing":
        open_response = get_response_synthesizer(llm=llm, streaming=at_startup != "query").synthesize(
            "Warm up.", others
        )
    ready, done = asyncio.Event(), asyncio.Event()
    startup = llm.last_report

    async def tenant_a() -> int:
        found = await index.as_retriever(similarity_top_k=TOP_K).aretrieve(QUESTION)
        await index.as_query_engine(llm=llm, similarity_top_k=TOP_K).aquery(QUESTION)
        ready.set()
        await done.wait()
        answer = await llm.acomplete(prompt([node.get_content() for node in found]))
        return int(answer.additional_kwargs["ragbias"]["n_found"])

    async def tenant_b() -> tuple[Any, str, int]:
        await ready.wait()
        before = llm.last_report
        about = (await llm.acomplete(prompt(texts))).additional_kwargs["ragbias"]
        done.set()
        return before, about["source"], about["n_found"]

    assert await asyncio.gather(tenant_a(), tenant_b()) == [TOP_K, (startup, "none", 0)]
    del open_response


# the last report


class Silent(CustomQueryEngine):
    """A query engine that calls no LLM."""

    def custom_query(self, query_str: str) -> str:
        return "Empty Response"


def test_a_reused_worker_shows_no_report_of_another_request(llm, index):
    def answer() -> dict[str, Any] | None:
        index.as_query_engine(llm=llm, similarity_top_k=TOP_K).query(QUESTION)
        return llm.last_report

    def other() -> dict[str, Any] | None:
        Silent().query(QUESTION)
        return llm.last_report

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(answer).result()
        assert first is not None
        assert first["n_found"] == TOP_K
        assert pool.submit(other).result() is None
