"""Direct queries of vector stores are recorded as retrievals, and their results are unchanged."""

import inspect

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore, VectorStoreQuery
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryResult
from llama_index.llms.ragbias import install_listener, listener, uninstall_listener

QUESTION = "What is the passphrase?"
TEXTS = ["The gate of the mill is red.", "The wall of the hall is blue.", "The tower is emerald green."]
NODES = [TextNode(text=text, metadata={"title": text[4:8]}) for text in TEXTS]


class Store(SimpleVectorStore):
    """A store that keeps texts, as most stores do, and returns all of them."""

    def query(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:
        return VectorStoreQueryResult(nodes=NODES, ids=[node.node_id for node in NODES], similarities=[1.0] * 3)


def retrieved() -> int:
    registry = listener.runs.retrievals.registry()
    return 0 if registry is None else len(registry.candidates())


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_direct_query_is_a_retrieval(llm, asynchronous):
    store, query = Store(), VectorStoreQuery(query_str=QUESTION)
    nodes = ((await store.aquery(query)) if asynchronous else store.query(query)).nodes
    assert nodes is NODES
    context = "\n\n".join(node.get_content() for node in nodes)
    report = llm.complete(f"Context:\n\n{context}\n\n{QUESTION}").additional_kwargs["ragbias"]
    assert (report["source"], report["n_found"], report["method_ran"]) == ("registry", 3, "pine")


def test_a_query_looks_and_fails_as_ever():
    store = Store()
    assert inspect.signature(store.query) == inspect.signature(Store.query.__get__(store))
    assert inspect.iscoroutinefunction(store.aquery)
    with pytest.raises(TypeError, match="query"):
        store.query()  # type: ignore[call-arg]
    assert retrieved() == 0


def test_what_a_retriever_queries_is_not_what_it_retrieves(index):
    index.as_retriever(similarity_top_k=2).retrieve(QUESTION)
    before = retrieved()
    assert before == 2  # with metadata, and bare
    index.vector_store.query(VectorStoreQuery(query_embedding=[0.1] * 384, similarity_top_k=2))  # ids, no texts
    assert retrieved() == before


def test_the_base_class_is_as_before_once_it_is_uninstalled():
    assert "__getattribute__" in BasePydanticVectorStore.__dict__
    install_listener(searches=False)
    assert "__getattribute__" not in BasePydanticVectorStore.__dict__
    Store().query(VectorStoreQuery())
    assert retrieved() == 0
    install_listener()
    Store().query(VectorStoreQuery())
    assert retrieved() == 2
    uninstall_listener()
    assert "__getattribute__" not in BasePydanticVectorStore.__dict__
