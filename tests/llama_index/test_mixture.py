"""Query engines with a mixture of documents: bit-identical answers in every order, and in every kind of call."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.llms import ChatMessage, CompletionResponse
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.llms.ragbias import RagBiasLLM

from ragbias import DocumentCache

QUESTION = "What is the passphrase?"
ORDERS = list(itertools.permutations(range(4)))


class Ordered(BaseNodePostprocessor):
    order: Sequence[int]

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return [nodes[at] for at in self.order]


@pytest.fixture
def llm(make_llm: Callable[..., RagBiasLLM]) -> RagBiasLLM:
    return make_llm(method="mixture", max_new_tokens=6, logprobs=True)


def engine(index: VectorStoreIndex, llm: RagBiasLLM, order: Sequence[int], **settings: Any) -> Any:
    ordered = [Ordered(order=order)]
    return index.as_query_engine(llm=llm, similarity_top_k=4, node_postprocessors=ordered, **settings)


def assert_ran(llm: RagBiasLLM) -> None:
    report = llm.last_report
    assert report is not None and (report["method_ran"], report["source"], report["n_found"]) == ("mixture", "run", 4)


def test_every_order_gets_the_same_answer(llm, index):
    answers = set()
    for order in ORDERS:
        answers.add(str(engine(index, llm, order).query(QUESTION)))
        assert_ran(llm)
    assert len(answers) == 1


async def test_streams_and_async_queries_get_it_too(llm, index):
    for mode in ("compact", "simple_summarize"):
        expected = str(engine(index, llm, ORDERS[0], response_mode=mode).query(QUESTION))
        streamed = engine(index, llm, ORDERS[-1], response_mode=mode, streaming=True).query(QUESTION)
        assert "".join(streamed.response_gen) == expected
        assert_ran(llm)
        assert str(await engine(index, llm, ORDERS[5], response_mode=mode).aquery(QUESTION)) == expected
        assert_ran(llm)


def test_log_probabilities_have_the_same_bits(llm, corpus):
    texts = [passage.text for passage in corpus[:4]]

    def ask(order: Sequence[int], **settings: Any) -> CompletionResponse:
        documents = [texts[at] for at in order]
        context = "\n\n".join(documents)
        return llm.complete(f"Context:\n\n{context}\n\n{QUESTION}", documents=documents, **settings)

    for settings in ({}, {"temperature": 1.2, "seed": 3}, {"stop": ["e", "a"]}):
        answers = [ask(order, **settings) for order in ORDERS[::5]]
        assert {answer.additional_kwargs["ragbias"]["method_ran"] for answer in answers} == {"mixture"}
        assert len({(answer.text, str(answer.logprobs)) for answer in answers}) == 1
    chats = [
        llm.chat([ChatMessage("\n\n".join([*order, QUESTION]))], documents=order) for order in (texts, texts[::-1])
    ]
    assert chats[0].logprobs == chats[1].logprobs and chats[0].message.content == chats[1].message.content


def test_documents_are_computed_once(lm, llm, index):
    settings = dict(model=lm.model, tokenizer=lm.tokenizer, method="mixture", max_new_tokens=6)
    cached = RagBiasLLM(**settings, document_cache=DocumentCache())
    expected = str(engine(index, llm, ORDERS[0]).query(QUESTION))
    counts = []
    for order in ORDERS[::8]:
        assert str(engine(index, cached, order).query(QUESTION)) == expected
        assert cached.last_report is not None
        counts.append(cached.last_report["cached_tokens"])
    assert counts[0] < counts[1] == counts[2]
