"""Nodes cached at indexing time are reused by the query engine that retrieves them."""

import pytest
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.llms.ragbias import RagBiasLLM, WarmDocuments, warm

from ragbias import DocumentCache
from ragbias.errors import ArgumentError, WrongTypeError
from support.random_models import random_model

TEXTS = [f"The gate of hall {number} is {colour}." for number, colour in enumerate(("red", "blue", "green") * 6)]


@pytest.fixture
def llm(byte_tokenizer):
    return RagBiasLLM(
        model=random_model("llama"),
        tokenizer=byte_tokenizer,
        method="ape",
        max_new_tokens=3,
        document_cache=DocumentCache(),
    )


def index_of(nodes_or_documents):
    return VectorStoreIndex.from_documents(nodes_or_documents, embed_model=MockEmbedding(embed_dim=8))


def all_cached(llm):
    report = llm.last_report
    return report["n_found"] >= 2 and report["cached_tokens"] == report["spans"][-1][1]


def test_one_line_warms_an_index_for_its_query_engine(llm):
    index = index_of([Document(text=text, metadata={"title": f"t{number}"}) for number, text in enumerate(TEXTS)])
    assert warm(llm, index, progress=False) == len(TEXTS)
    engine = index.as_query_engine(llm=llm, similarity_top_k=4)
    first = engine.query("Which gate is red?")
    assert all_cached(llm)
    assert str(engine.query("Which gate is red?")) == str(first)


def test_an_ingestion_pipeline_warms_its_nodes(llm):
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), WarmDocuments(llm=llm)])
    nodes = pipeline.run(documents=[Document(text=text) for text in TEXTS])
    assert warm(llm, nodes, progress=False) == 0
    engine = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=8)).as_query_engine(
        llm=llm, similarity_top_k=3
    )
    engine.query("Which?")
    assert all_cached(llm)


def test_usage_reports_cached_tokens(llm):
    prompt, documents = "\n\n".join([*TEXTS[:3], "Which?"]), TEXTS[:3]
    for _ in range(2):
        response = llm.complete(prompt, documents=documents)
        details = response.additional_kwargs["prompt_tokens_details"], response.raw["usage"]["prompt_tokens_details"]
    assert details[0] == details[1] and details[0]["cached_tokens"] == llm.last_report["cached_tokens"] > 0


def test_what_cannot_be_warmed_is_named(llm):
    with pytest.raises(ArgumentError, match="1 documents to warm"):
        warm(llm, [Document(text="alone")], progress=False)
    with pytest.raises(WrongTypeError, match="expected RagBiasLLM"):
        warm("llm", [], progress=False)
