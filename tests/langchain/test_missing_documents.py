"""Warnings of missing documents: at the user's line, and none for steps that hold one document by design."""

from __future__ import annotations

import warnings

import pytest
from langchain_classic.chains import create_retrieval_chain
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph

from langchain_ragbias import ChatRagBias, MissingDocumentsWarning
from langchain_ragbias.listener import listener
from ragbias.errors import NoDocumentsError

GRADER = ChatPromptTemplate.from_messages(
    [("system", "Grade it."), ("human", "Retrieved document:\n\n{document}\n\nUser question: {question}")]
)


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


@pytest.mark.parametrize("program", [grade, grade_in_a_run, refine])
def test_steps_that_hold_one_document_by_design_are_no_mistake(lm, retriever, program):
    llm = ChatRagBias(lm=lm, max_tokens=2, on_missing="raise")
    alike = [Document(f"The gate of the old mill in the valley is painted {c}.") for c in ("red", "blue", "green")]
    for documents in (retriever.invoke("Which?"), alike):
        listener.retrievals.add([each.page_content for each in documents])
        program(llm, documents)
        assert (llm.last_report["n_found"], llm.last_report["reason"]) == (
            1,
            "one document found, so there is no order to debias",
        )


def test_one_whole_document_beside_cut_ones_is_a_mistake(lm):
    llm = ChatRagBias(lm=lm, max_tokens=2, on_missing="raise")
    documents = [Document("The old mill has a red gate."), Document("The hall of the old town has blue walls. " * 3)]

    def cut(state):
        return llm.invoke("Context:\n\n" + "\n\n".join(d.page_content[:60] for d in state) + "\n\nWhich gate is red?")

    with pytest.raises(NoDocumentsError, match="located 1 of 2"):
        RunnableLambda(cut).invoke(documents)
