"""Chains with a mixture of documents: bit-identical answers in every order, and in every kind of call."""

import itertools
from collections.abc import Sequence

import pytest
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough

from langchain_ragbias import ChatRagBias, RagBiasPipeline
from ragbias import DocumentCache
from support.langchain_pipelines import FORMATS, PROMPT

QUESTION = "What is the passphrase?"
ORDERS = list(itertools.permutations(range(4)))


class Ordered(BaseRetriever):
    """Search, and return the documents in a given order."""

    index: FAISS
    order: Sequence[int]

    def _get_relevant_documents(self, query: str, **_: object) -> list[Document]:
        found = self.index.similarity_search(query, len(self.order))
        return [found[at] for at in self.order]


def chain(index: FAISS, order: Sequence[int], llm: Runnable) -> Runnable:
    documents = Ordered(index=index, order=order) | FORMATS["blank lines"]
    return {"context": documents, "input": RunnablePassthrough()} | PROMPT | llm


def bits(message):
    report = message.response_metadata["ragbias"]
    assert (report["method_ran"], report["n_found"]) == ("mixture", 4)
    return message.content, tuple(each["logprob"] for each in message.response_metadata["logprobs"]["content"])


@pytest.fixture(scope="module")
def llm(lm):
    return ChatRagBias(lm=lm, method="mixture", max_tokens=6, logprobs=True)


def test_every_order_has_the_same_bits(llm, index):
    answers = {bits(chain(index, order, llm).invoke(QUESTION)) for order in ORDERS}
    assert len(answers) == 1
    plain = {chain(index, order, llm.bind(method="none")).invoke(QUESTION).content for order in ORDERS[:8]}
    assert len(plain) > 1


async def test_streams_batches_and_async_calls_have_them_too(llm, index):
    expected = bits(chain(index, ORDERS[0], llm).invoke(QUESTION))
    other = chain(index, ORDERS[-1], llm)
    chunks = list(other.stream(QUESTION))
    whole = sum(chunks[1:], chunks[0])
    assert isinstance(whole, AIMessageChunk) and len(chunks) > 2
    batch = other.batch(["Who keeps the gate?", QUESTION])
    found = [whole, batch[1], await other.ainvoke(QUESTION), *await other.abatch([QUESTION, QUESTION])]
    assert [bits(message) for message in found] == [expected] * 5
    assert bits(batch[0]) != expected


def test_samples_and_stop_strings_do_not_depend_on_the_order(llm, index):
    for settings in ({"temperature": 1.2, "seed": 3}, {"stop": ["e", "a", " "]}):
        answers = {bits(chain(index, order, llm.bind(**settings)).invoke(QUESTION)) for order in ORDERS[::6]}
        assert len(answers) == 1


def test_the_stock_chain_reuses_documents(lm, index):
    cached = dict(model=lm.model, tokenizer=lm.tokenizer, document_cache=DocumentCache())
    for llm in (ChatRagBias(**cached, method="mixture", max_tokens=6), RagBiasPipeline(lm=lm, method="mixture")):
        answers = set()
        for order in ORDERS[::8]:
            documents = create_stuff_documents_chain(llm, PROMPT)
            answers.add(
                create_retrieval_chain(Ordered(index=index, order=order), documents).invoke({"input": QUESTION})[
                    "answer"
                ]
            )
            assert llm.last_report["method_ran"] == "mixture"
        assert len(answers) == 1
        assert (llm.last_report["cached_tokens"] > 0) == isinstance(llm, ChatRagBias)


def test_tools_are_in_the_prompt_of_every_document(tool_lm, index):
    def search(query: str) -> str:
        """Search the archive."""
        return query

    llm = ChatRagBias(lm=tool_lm, method="mixture", max_tokens=6, logprobs=True)
    without, *answers = (
        bits(chain(index, order, given).invoke(QUESTION))
        for order, given in ((ORDERS[0], llm), *((order, llm.bind_tools([search])) for order in ORDERS[::8]))
    )
    assert len(set(answers)) == 1 and without != answers[0]
