"""Every pipeline finds the documents that the docs' table lists, and no wrong ones. ``-s`` prints the table."""

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.runnables import Runnable

from langchain_ragbias import ChatRagBias
from ragbias import DebiasedLM
from ragbias.models.tiny.world import Passage, held_out_questions
from support.langchain_pipelines import PIPELINES, PROMPT, lines, retriever_of
from support.scripted import RecordingLM

DOCS = Path(__file__).parents[2] / "docs" / "results" / "pipelines.md"


@pytest.fixture(scope="module")
def tiny(tiny_with_tools: DebiasedLM) -> RecordingLM:
    return RecordingLM(tiny_with_tools)


@pytest.fixture(scope="module")
def questions(passages: list[Passage]) -> list[str]:
    return [each.question for each in held_out_questions(passages, 50, seed=2)]


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[str, tuple[int, int, int]]]:
    collected: dict[str, tuple[int, int, int]] = {}
    yield collected
    print("", *lines(collected), sep="\n")


@pytest.mark.parametrize("name", PIPELINES)
def test_what_is_found_is_what_the_docs_say_and_nothing_wrong(name, tiny, index, questions, rows, tmp_path):
    ask = PIPELINES[name](ChatRagBias(lm=tiny, max_tokens=8, on_missing="ignore"), index, tmp_path)
    expected = found = wrong = debiased = 0
    for question in questions[:8]:
        tiny.requests.clear()
        answer, documents = ask(question)
        assert isinstance(answer, str)
        texts = {document.page_content for document in documents}
        request = max(tiny.requests, key=lambda each: each.report.n_found)
        segments = [tiny.tokenizer.decode(document) for document in request.tokens.documents]
        hits = [sum(text in segment for text in texts) for segment in segments]
        expected += len(texts)
        found += sum(any(text in segment for segment in segments) for text in texts)
        wrong += sum(hit != 1 for hit in hits)
        debiased += request.report.method_ran == "pine"
        assert request.report.reason or len(segments) == len(texts)
    rows[name] = (expected, found, debiased)
    assert wrong == 0
    begin, *variant = next(lines({name: rows[name]})).split(": ")
    (line,) = [line for line in DOCS.read_text().replace("\n  ", " ").splitlines() if line.startswith(begin)]
    assert set(variant) <= set(line.partition(": ")[2].split(" · "))


@pytest.mark.parametrize("name", [name for name in PIPELINES if name.startswith(("LCEL", "create_retrieval_chain"))])
def test_the_same_documents_in_any_order_are_the_same_segments(name, tiny, index, questions, tmp_path):
    class Shuffled(FAISS):
        """Return the same documents in another order each time."""

        def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
            found = index.similarity_search(query, k, **kwargs)
            return rng.sample(found, len(found))

    rng = random.Random(name)
    shuffled = Shuffled(index.embeddings, index.index, index.docstore, index.index_to_docstore_id)
    ask = PIPELINES[name](ChatRagBias(lm=tiny, max_tokens=8, on_missing="ignore"), shuffled, tmp_path)
    seen, answers, orders, ran = set(), set(), set(), set()
    for _ in range(6):
        tiny.requests.clear()
        answer, documents = ask(questions[0])
        tokens, report = tiny.requests[-1].tokens, tiny.requests[-1].report
        ran.add(report.method_ran)
        seen.add((tuple(tokens.prefix), tuple(sorted(map(tuple, tokens.documents))), tuple(tokens.suffix)))
        orders.add(tuple(document.page_content for document in documents))
        answers.add(answer)
    assert len(orders) > 3
    assert len(ran) == 1  # plain in every order or in none
    if ran == {"pine"} and "numbers" not in name:  # which tell the order in the text itself
        assert (len(seen), len(answers)) == (1, 1)


# many at once


@pytest.fixture(scope="module")
def many(tiny: RecordingLM, index: FAISS) -> tuple[ChatRagBias, Runnable]:
    llm = ChatRagBias(lm=tiny, max_tokens=4)
    return llm, create_retrieval_chain(retriever_of(index), create_stuff_documents_chain(llm, PROMPT))


def outcome(llm: ChatRagBias, result: dict[str, Any]) -> tuple[str, int, str, list[list[int]]]:
    report = llm.last_report
    assert report is not None
    return result["answer"], report["n_found"], report["source"], report["spans"]


@pytest.fixture(scope="module")
def alone(many: tuple[ChatRagBias, Runnable], questions: list[str]) -> list[Any]:
    llm, chain = many
    return [outcome(llm, chain.invoke({"input": question})) for question in questions]


def test_fifty_threads_get_what_each_gets_alone(many, questions, alone):
    llm, chain = many
    start = threading.Barrier(50)

    def ask(question: str) -> Any:
        start.wait()
        return outcome(llm, chain.invoke({"input": question}))

    with ThreadPoolExecutor(50) as pool:
        together = list(pool.map(lambda question: copy_context().run(ask, question), questions))
    assert together == alone
    assert {(n, source) for _, n, source, _ in alone} == {(5, "run")}


async def test_fifty_tasks_get_what_each_gets_alone(many, questions, alone):
    llm, chain = many

    async def ask(question: str) -> Any:
        return outcome(llm, await chain.ainvoke({"input": question}))

    assert await asyncio.gather(*(ask(question) for question in questions)) == alone


async def test_fifty_questions_in_a_batch_get_what_each_gets_alone(many, questions, alone):
    _, chain = many
    inputs = [{"input": question} for question in questions]
    for results in (chain.batch(inputs), await chain.abatch(inputs)):
        assert [result["answer"] for result in results] == [answer for answer, *_ in alone]
