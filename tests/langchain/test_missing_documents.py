"""Warnings about missing documents name the user's line. Steps with one document by design do not warn."""

import itertools
import warnings

import pytest
import tenacity
from langchain_classic.chains import create_retrieval_chain
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.graph import START, StateGraph

from langchain_ragbias import ChatRagBias, MissingDocumentsWarning
from langchain_ragbias.listener import listener
from ragbias.errors import DocumentNotFoundError, NoDocumentsError

GRADER = ChatPromptTemplate.from_messages(
    [("system", "Grade it."), ("human", "Retrieved document:\n\n{document}\n\nUser question: {question}")]
)


def found_in(texts: list[str]) -> list[Document]:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_texts(texts)
    return store.similarity_search("Which?", k=len(texts))


def test_each_stock_chain_warns_at_its_own_line(lm, retriever):
    """The chain's steps run in threads without the user's frames."""
    llm = ChatRagBias(lm=lm, max_tokens=2)
    answer = ChatPromptTemplate.from_template("{input}, without context") | llm

    def ask() -> None:
        create_retrieval_chain(retriever, answer).invoke({"input": "Which?"})
        create_retrieval_chain(retriever, answer).invoke({"input": "Who?"})

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ask()
    lines = [(each.filename, each.lineno) for each in seen if each.category is MissingDocumentsWarning]
    first = ask.__code__.co_firstlineno + 1
    assert lines == [(__file__, first), (__file__, first + 1)]


async def test_awaited_chains_and_batches_warn_at_the_users_line(lm, retriever):
    answer = ChatPromptTemplate.from_template("{input}, without context") | ChatRagBias(lm=lm, max_tokens=2)
    chain = create_retrieval_chain(retriever, answer)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        await chain.ainvoke({"input": "Which?"})
        chain.batch([{"input": "Which?"}, {"input": "Who?"}])
        ChatRagBias(lm=lm, max_tokens=2).batch(["Hello!", "Good morning!"])
    assert [each.filename for each in seen if each.category is MissingDocumentsWarning] == [__file__] * 3


def test_retries_warn_at_the_users_line(lm):
    llm = ChatRagBias(lm=lm, max_tokens=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for call in (tenacity.Retrying(stop=tenacity.stop_after_attempt(1)), tenacity.Retrying()):
            call(llm.invoke, "Which?")
    lines = [(each.filename, each.lineno) for each in seen if each.category is MissingDocumentsWarning]
    assert lines == [(__file__, test_retries_warn_at_the_users_line.__code__.co_firstlineno + 5)]


def test_strings_in_a_graphs_state_are_no_documents(lm, retriever):
    llm = ChatRagBias(lm=lm, max_tokens=2)

    def generate(state: dict) -> dict:
        joined = "\n\n".join(each.page_content for each in state["context"])
        return {"answer": llm.invoke(f"Context:\n\n{joined}\n\nWhich?").content}

    graph = StateGraph(dict)
    graph.add_node("retrieve", lambda state: {**state, "context": retriever.invoke("Which?")})
    graph.add_node("generate", generate)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "generate")
    graph.compile().invoke({"queries": ["Which gate is red?", "Which hall is blue?"]})
    assert (llm.last_report["source"], llm.last_report["n_found"], llm.last_report["reason"]) == ("run", 5, "")


def grade(llm, documents):
    for document in documents:
        (GRADER | llm).invoke({"document": document.page_content, "question": "Which?"})


def grade_in_a_run(llm, documents):
    RunnableLambda(lambda state: grade(llm, state["documents"])).invoke({"documents": documents})


def refine(llm, documents):
    def step(state):
        previous = "None yet."
        for document in state["documents"]:
            previous = llm.invoke(f"So far: {previous}\n\n{document.page_content}\n\nRefine it.").content
        return previous

    RunnableLambda(step).invoke({"documents": documents})


def grade_in_plain_python(llm, documents):
    forms = ["Document: {}", "Doc: {}", "Context: {}", "<document>{}</document>", "Set of facts: \n\n {} ", "- {}"]
    for form in (*forms, "Passage (1 of 4): {}", "Document (wifi.txt): {}"):
        for document in documents:
            llm.invoke(f"Is it relevant?\n{form.format(document.page_content)}\nQuestion: Which?")


@pytest.mark.parametrize("program", [grade, grade_in_a_run, grade_in_plain_python, refine])
def test_steps_that_hold_one_document_by_design_are_no_mistake(lm, retriever, program):
    llm = ChatRagBias(lm=lm, max_tokens=2, on_missing="raise")
    alike = [Document(f"The gate of the old mill in the valley is painted {c}.") for c in ("red", "blue", "green")]
    for documents in (retriever.invoke("Which?"), alike):
        listener.runs.retrievals.add([each.page_content for each in documents])
        program(llm, documents)
        assert (llm.last_report["n_found"], llm.last_report["reason"]) == (
            1,
            "one document found, so there is no order to debias",
        )


def test_a_rewritten_document_with_the_same_label_raises(lm):
    llm = ChatRagBias(lm=lm, max_tokens=2, on_missing="raise")
    known, other = "The old mill has a red gate.", "The hall of the old town has blue walls."
    text = f"Document: {known}\nDocument: {other.upper()}\n\nWhich gate is red?"
    for retrieved in ([known], [known, other]):
        listener.runs.clear()
        listener.runs.retrievals.add(retrieved)
        with pytest.raises(NoDocumentsError, match="located (0|none)"):
            llm.invoke(text)
        with pytest.raises(NoDocumentsError, match="located"):
            RunnableLambda(lambda documents: llm.invoke(text)).invoke([Document(each) for each in retrieved])


def test_one_whole_document_beside_cut_ones_is_a_mistake(lm):
    llm = ChatRagBias(lm=lm, max_tokens=2, on_missing="raise")
    documents = [Document("The old mill has a red gate."), Document("The hall of the old town has blue walls. " * 3)]

    def cut(state):
        return llm.invoke("Context:\n\n" + "\n\n".join(d.page_content[:60] for d in state) + "\n\nWhich gate is red?")

    with pytest.raises(NoDocumentsError, match="located 1 of 2"):
        RunnableLambda(cut).invoke(documents)


@pytest.mark.parametrize("in_chain", [False, True])
def test_a_cut_document_beside_whole_ones_is_a_mistake(lm, in_chain):
    texts = [
        "The gate of the mill is red, and the mill is north of the river.",
        "The wall is blue.",
        "Emerald is the tower.",
    ]
    llm = ChatRagBias(lm=lm, max_tokens=2, on_missing="raise")

    def ask(order):
        found_in(texts)
        cut = [texts[index] if index else texts[index][:45] + "..." for index in order]
        return llm.invoke("Context:\n\n" + "\n\n".join(cut) + "\n\nQuestion: Is it?")

    for order in itertools.permutations(range(3)):
        with pytest.raises((NoDocumentsError, DocumentNotFoundError), match="2 of 3"):
            RunnableLambda(ask).invoke(order) if in_chain else ask(order)


def test_a_question_in_words_of_another_document_is_no_mistake(lm):
    llm = ChatRagBias(lm=lm, max_tokens=2, on_missing="raise")
    for document in found_in(["The gate of the mill is red.", "The wall of the hall is blue."]):
        llm.invoke(f"Document: {document.page_content}\n\nQuestion: What colour is the wall of the hall?")
