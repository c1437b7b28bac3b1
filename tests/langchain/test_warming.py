"""Documents cached at indexing time are reused by the chain that retrieves them."""

import pytest
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_ragbias import ChatRagBias, RagBiasPipeline, warm
from ragbias import DocumentCache
from ragbias.errors import ArgumentError, DocumentNotFoundError, WrongTypeError
from support.random_models import random_model

COLOURS = ("red", "blue", "green", "grey")
TEXTS = [f"The gate of hall {number} is {COLOURS[number % 4]}." for number in range(20)]

PROMPT = ChatPromptTemplate.from_messages([("system", "Use the context.\n\n{context}"), ("human", "{input}")])
PLAIN = PromptTemplate.from_template("Context:\n{context}\n\nQuestion: {input}\nAnswer:")


def model(kind, byte_tokenizer, **fields):
    cache = fields.pop("document_cache", None) or DocumentCache()
    given = dict(model=random_model("llama"), tokenizer=byte_tokenizer, method="ape", max_tokens=3)
    return kind(**{**given, "document_cache": cache, **fields})


def cached(llm):
    """Return the number of cached tokens of the last answer."""
    return llm.last_report["cached_tokens"]


@pytest.mark.parametrize(
    ("kind", "prompt"), [(ChatRagBias, PROMPT), (RagBiasPipeline, PLAIN)], ids=["chat", "completion"]
)
@pytest.mark.parametrize("store", [InMemoryVectorStore, FAISS], ids=["memory", "faiss"])
def test_one_line_warms_a_store_for_the_chain_over_it(kind, prompt, store, byte_tokenizer):
    llm = model(kind, byte_tokenizer)
    index = store.from_texts(TEXTS, DeterministicFakeEmbedding(size=16))
    assert warm(llm, index, prompt, progress=False) == len(TEXTS)
    assert warm(llm, index, prompt, progress=False) == 0
    retriever = index.as_retriever(search_kwargs={"k": 5})
    chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, prompt))
    for question in ("Which gate is red?", "And which is blue?"):
        found = chain.invoke({"input": question})
        report = llm.last_report
        assert report["n_found"] == 5 and report["method_ran"] == "ape"
        assert cached(llm) == report["spans"][-1][1], "all up to the last document"
        cold = model(kind, byte_tokenizer)
        cold.document_cache.clear()
        again = create_retrieval_chain(retriever, create_stuff_documents_chain(cold, prompt)).invoke(
            {"input": question}
        )
        assert again["answer"] == found["answer"]


def test_a_function_or_a_runnable_makes_the_prompt_too(byte_tokenizer):
    def numbered(some):
        return PROMPT.invoke({"context": "\n".join(f"- {each.page_content}" for each in some), "input": "?"})

    llm = model(ChatRagBias, byte_tokenizer)
    documents = [Document(text) for text in TEXTS[:17]]  # one more than stand together
    assert warm(llm, documents, numbered, progress=False) == 17
    assert warm(llm, TEXTS[:17], RunnableLambda(numbered), progress=False) == 0


def test_usage_reports_cached_tokens(byte_tokenizer):
    llm = model(ChatRagBias, byte_tokenizer)
    for expected in (0, 1):
        message = llm.invoke("\n\n".join([*TEXTS[:3], "Which?"]), documents=TEXTS[:3])
        assert (message.usage_metadata["input_token_details"]["cache_read"] > 0) == bool(expected)


@pytest.mark.parametrize(
    ("documents", "prompt", "error", "message"),
    [
        (TEXTS[:1], PROMPT, ArgumentError, "1 documents to warm; pass at least two"),
        (TEXTS, PromptTemplate.from_template("{docs}"), ArgumentError, "has the variables docs; expected context"),
        (TEXTS, 5, WrongTypeError, "expected a template, a runnable, or a function"),
        (TEXTS, lambda some: "nothing of it", DocumentNotFoundError, "0 of 16 documents found"),
    ],
)
def test_what_cannot_be_warmed_is_named(documents, prompt, error, message, byte_tokenizer):
    with pytest.raises(error, match=message):
        warm(model(ChatRagBias, byte_tokenizer), documents, prompt, progress=False)


def test_a_model_without_cache_is_an_error(byte_tokenizer):
    llm = ChatRagBias(model=random_model("llama"), tokenizer=byte_tokenizer, method="ape")
    with pytest.raises(ArgumentError, match="no cache to warm"):
        warm(llm, TEXTS, PROMPT, progress=False)
