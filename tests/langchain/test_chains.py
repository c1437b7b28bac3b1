"""In real chains, the method runs on exactly the retrieved documents."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough

import ragbias
from langchain_ragbias import install_listener
from ragbias.prompt import Prompt, tokenise

QUESTIONS = [
    "What is the passphrase?", "Who founded it?", "What colour is the gate?", "Which animal is kept there?",
    "When was it opened?", "What do they sell?", "Who is the director?", "What is stored in the cellar?",
]  # fmt: skip


def joined(documents: list[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


def token_spans(llm, text: str, documents: list[Document]) -> list[list[int]]:
    """Return the documents' token spans in a templated prompt."""
    starts = [text.index(document.page_content) for document in documents]
    spans = [(start, start + len(document.page_content)) for start, document in zip(starts, documents, strict=True)]
    return [list(span) for span in tokenise(Prompt.from_text(text, spans), llm.lm.tokenizer).spans]


def assert_ran(report: dict, n: int, source: str = "run") -> None:
    assert report["method_requested"] == "pine"
    assert (report["method_ran"], report["source"], report["n_found"]) == ("pine", source, n)
    assert len(report["spans"]) == n


def test_the_stock_chain_runs_on_the_retrieved_documents(chat, rag):
    result = rag(chat).invoke({"input": QUESTIONS[0]})
    assert len(result["context"]) == 5
    assert_ran(chat.last_report, 5)
    assert chat.last_report["reason"] == ""


def test_spans_are_those_of_documents_in_the_retrievers_order(chat, retriever):
    prompt = ChatPromptTemplate.from_messages([("system", "Context: {context}"), ("human", "{input}")])
    seen = {}

    def keep(value):
        seen["text"] = chat.lm.chat_text(
            [
                {"role": "system", "content": value.messages[0].content},
                {"role": "user", "content": value.messages[1].content},
            ]
        )
        return value

    chain = {"context": retriever | joined, "input": RunnablePassthrough()} | prompt | RunnableLambda(keep) | chat
    message = chain.invoke(QUESTIONS[0])
    report = message.response_metadata["ragbias"]
    assert_ran(report, 5)
    assert report["spans"] == token_spans(chat, seen["text"], retriever.invoke(QUESTIONS[0]))


def test_the_completion_model_runs_in_the_same_chain(completion, rag):
    result = rag(completion).invoke({"input": QUESTIONS[0]})
    assert isinstance(result["answer"], str)
    assert_ran(completion.last_report, 5)


def test_streams_of_a_chain_run_on_the_retrieved_documents(chat, completion, rag):
    for llm in (chat, completion):
        whole = rag(llm).invoke({"input": QUESTIONS[1]})["answer"]
        pieces = [part["answer"] for part in rag(llm).stream({"input": QUESTIONS[1]}) if "answer" in part]
        assert "".join(pieces) == whole
        assert len(pieces) > 2
        assert_ran(llm.last_report, 5)


async def test_async_chains_run_on_the_retrieved_documents(chat, completion, rag):
    for llm in (chat, completion):
        whole = (await rag(llm).ainvoke({"input": QUESTIONS[1]}))["answer"]
        assert_ran(llm.last_report, 5)
        pieces = [part["answer"] async for part in rag(llm).astream({"input": QUESTIONS[1]}) if "answer" in part]
        assert "".join(pieces) == whole
        assert_ran(llm.last_report, 5)


def test_documents_passed_to_a_streamed_stuff_chain_are_found(chat, retriever):
    from langchain_classic.chains.combine_documents import create_stuff_documents_chain

    prompt = ChatPromptTemplate.from_messages([("system", "Context: {context}"), ("human", "{input}")])
    documents = retriever.invoke(QUESTIONS[2])
    from langchain_ragbias.listener import listener

    listener.runs.clear()
    chain = create_stuff_documents_chain(chat, prompt)
    "".join(chain.stream({"context": documents, "input": QUESTIONS[2]}))
    assert_ran(chat.last_report, 5)


def chain_of_messages(llm, retriever):
    prompt = ChatPromptTemplate.from_messages([("system", "Context: {context}"), ("human", "{input}")])
    answer = {"context": retriever | joined, "input": RunnablePassthrough()} | prompt | llm
    return RunnableParallel(documents=retriever, message=answer)


def assert_own_documents(results, questions, retriever):
    for question, result in zip(questions, results, strict=True):
        expected = retriever.invoke(question)
        assert [document.page_content for document in result["documents"]] == [d.page_content for d in expected]
        assert_ran(result["message"].response_metadata["ragbias"], 5)
        assert result["message"].response_metadata["ragbias"]["reason"] == ""


def test_a_threaded_batch_finds_the_documents_of_each_question(chat, retriever):
    results = chain_of_messages(chat, retriever).batch(QUESTIONS)
    assert_own_documents(results, QUESTIONS, retriever)


async def test_an_async_batch_finds_each_questions_own_documents(chat, retriever):
    results = await chain_of_messages(chat, retriever).abatch(QUESTIONS)
    assert_own_documents(results, QUESTIONS, retriever)


def test_threads_with_different_documents_do_not_mix(chat, rag):
    alone = [rag(chat).invoke({"input": question})["answer"] for question in QUESTIONS]

    def ask(question):
        answer = rag(chat).invoke({"input": question})["answer"]
        return answer, chat.last_report

    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: copy_context().run(ask, question), QUESTIONS))
    assert [answer for answer, _ in together] == alone
    for _, report in together:
        assert_ran(report, 5)


def test_a_completion_batch_is_padded_with_each_documents(completion, retriever, forwards):
    prompt = PromptTemplate.from_template("Context: {context}\n\nQuestion: {input}\nAnswer:")
    chain = {"context": retriever | joined, "input": RunnablePassthrough()} | prompt | completion
    alone = [chain.invoke(question) for question in QUESTIONS]
    forwards.clear()
    assert chain.batch(QUESTIONS) == alone
    assert set(forwards) == {len(QUESTIONS)}


def test_generate_with_several_prompts_reports_each(completion, retriever):
    prompts = [f"Context: {joined(retriever.invoke(question))}\n\nQuestion: {question}" for question in QUESTIONS[:3]]
    result = completion.generate([*prompts, "No context at all."])
    reports = [generation[0].generation_info["ragbias"] for generation in result.generations]
    for report in reports[:3]:
        assert_ran(report, 5, source="registry")
    assert (reports[3]["method_ran"], reports[3]["n_found"]) == ("none", 0)
    assert result.llm_output["token_usage"]["completion_tokens"] > 0


def test_separate_retriever_and_model_calls_share_the_registry(chat, retriever):
    documents = retriever.invoke(QUESTIONS[3])
    message = chat.invoke(f"Context: {joined(documents)}\n\nQuestion: {QUESTIONS[3]}")
    assert_ran(message.response_metadata["ragbias"], 5, source="registry")


@pytest.mark.filterwarnings("ignore::langchain_ragbias.MissingDocumentsWarning")
def test_retrieval_that_nobody_sees_needs_the_documents_named(chat, index):
    install_listener(searches=False)
    documents = index.similarity_search(QUESTIONS[4], k=4)
    text = f"Context: {joined(documents)}\n\nQuestion: {QUESTIONS[4]}"
    assert chat.invoke(text).response_metadata["ragbias"]["method_ran"] == "none"
    assert_ran(chat.invoke(text, documents=documents).response_metadata["ragbias"], 4, source="documents")
    with ragbias.documents(documents):
        assert_ran(chat.invoke(text).response_metadata["ragbias"], 4, source="documents")


def test_artifacts_of_tool_messages_are_found(chat, index):
    documents = index.similarity_search(QUESTIONS[5], k=4)
    message = chat.invoke(
        [
            HumanMessage(QUESTIONS[5]),
            ToolMessage(joined(documents), artifact=documents, tool_call_id="1", name="search"),
        ]
    )
    assert_ran(message.response_metadata["ragbias"], 4, source="artifact")


def test_last_report_is_that_of_the_own_context(chat, retriever):
    documents = retriever.invoke(QUESTIONS[6])

    def with_documents():
        chat.invoke(f"Context: {joined(documents)}\n\nWhich?", documents=documents)
        return chat.last_report

    chat.invoke("Nothing here.")
    assert copy_context().run(with_documents)["n_found"] == 5
    assert chat.last_report["n_found"] == 0


def test_a_chain_around_a_parser_leaves_its_caller_a_report(chat, retriever):
    prompt = ChatPromptTemplate.from_messages([("system", "Context: {context}"), ("human", "{input}")])
    chain = {"context": retriever | joined, "input": RunnablePassthrough()} | prompt | chat | StrOutputParser()
    chain.invoke(QUESTIONS[7])
    assert_ran(chat.last_report, 5)
