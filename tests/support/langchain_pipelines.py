"""Common LangChain pipelines. Each answers a question and returns the documents that were in the prompt."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

from langchain.agents import create_agent
from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MultiQueryRetriever,
    ParentDocumentRetriever,
)
from langchain_classic.retrievers.document_compressors import EmbeddingsFilter
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.stores import InMemoryStore
from langchain_core.tools import create_retriever_tool
from langchain_text_splitters import RecursiveCharacterTextSplitter
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

import ragbias
from langchain_ragbias import ChatRagBias, RagBiasPipeline
from support.scripted import saying

SYSTEM = (
    "Use the given context to answer the question. If you don't know the answer, say you don't know. "
    "Keep the answer concise.\n\nContext: {context}"
)
OWN_LINE = SYSTEM.replace("Context: ", "Context:\n")
PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", "{input}")])
Answered = tuple[str, list[Document]]
Ask = Callable[[str], Answered]
Builder = Callable[[ChatRagBias, FAISS, Path], Ask]

FORMATS: dict[str, Callable[[list[Document]], str]] = {
    "blank lines": lambda found: "\n\n".join(each.page_content for each in found),
    "line breaks": lambda found: "\n".join(each.page_content for each in found),
    "rules": lambda found: "\n---\n".join(each.page_content for each in found),
    "titles": lambda found: "\n\n".join(f"{each.metadata['title']}\n{each.page_content}" for each in found),
    "numbers": lambda found: "\n\n".join(f"[{i}] {each.page_content}" for i, each in enumerate(found, 1)),
    "sources": lambda found: "\n\n".join(f"Source: {each.metadata}\nContent: {each.page_content}" for each in found),
    "footers": lambda found: "\n\n".join(f"{each.page_content}\nSource: {each.metadata['title']}" for each in found),
    "altered titles": lambda found: "\n\n".join(f"{each.metadata['title'][:5]}\n{each.page_content}" for each in found),
    "bullets": lambda found: "\n".join(f"- {each.page_content}" for each in found),
    "repr of the list": str,
    "XML tags": lambda found: "\n".join(f"<doc>{each.page_content}</doc>" for each in found),
}


def retriever_of(index: FAISS) -> BaseRetriever:
    return index.as_retriever(search_kwargs={"k": 5})


def asking(chain: Any) -> Ask:
    """Wrap a chain that returns ``answer`` and ``context``."""

    def ask(question: str) -> Answered:
        result = chain.invoke({"input": question})
        return str(getattr(result["answer"], "content", result["answer"])), result["context"]

    return ask


def lcel(form: Callable[[list[Document]], str], system: str = SYSTEM) -> Builder:
    prompt = ChatPromptTemplate.from_messages([("system", system), ("human", "{input}")])

    def build(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
        context = RunnableLambda(lambda value: value["input"]) | retriever_of(index)
        answer = RunnablePassthrough.assign(context=lambda value: form(value["context"])) | prompt | llm
        return asking(RunnablePassthrough.assign(context=context).assign(answer=answer))

    return build


def completion(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
    prompt = PromptTemplate.from_template("Context:\n{context}\n\nQuestion: {input}\nAnswer:")
    model = RagBiasPipeline(lm=llm.lm, max_tokens=llm.max_tokens)
    return asking(create_retrieval_chain(retriever_of(index), create_stuff_documents_chain(model, prompt)))


def with_retriever(make: Callable[[ChatRagBias, FAISS, Path], BaseRetriever]) -> Builder:
    def build(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
        return asking(create_retrieval_chain(make(llm, index, folder), create_stuff_documents_chain(llm, PROMPT)))

    return build


def document_prompt(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
    item = PromptTemplate.from_template("title: {title}\n\n{page_content}")
    return asking(
        create_retrieval_chain(retriever_of(index), create_stuff_documents_chain(llm, PROMPT, document_prompt=item))
    )


def streamed(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
    chain = create_retrieval_chain(retriever_of(index), create_stuff_documents_chain(llm, PROMPT))

    def ask(question: str) -> Answered:
        parts = list(chain.stream({"input": question}))
        context = next(part["context"] for part in parts if "context" in part)
        return "".join(part.get("answer", "") for part in parts), context

    return ask


def ensemble(llm: ChatRagBias, index: FAISS, folder: Path) -> BaseRetriever:
    diverse = index.as_retriever(search_type="mmr", search_kwargs={"k": 4, "fetch_k": 20, "lambda_mult": 0.3})
    return EnsembleRetriever(retrievers=[retriever_of(index), diverse], weights=[0.6, 0.4])


def multi_query(llm: ChatRagBias, index: FAISS, folder: Path) -> BaseRetriever:
    return MultiQueryRetriever.from_llm(retriever=retriever_of(index), llm=llm, include_original=True)


def compression(llm: ChatRagBias, index: FAISS, folder: Path) -> BaseRetriever:
    best = EmbeddingsFilter(embeddings=index.embeddings, k=3)
    return ContextualCompressionRetriever(base_compressor=best, base_retriever=retriever_of(index))


def parents(llm: ChatRagBias, index: FAISS, folder: Path) -> BaseRetriever:
    whole = list(index.docstore._dict.values())
    retriever = ParentDocumentRetriever(
        vectorstore=FAISS.from_texts(["nothing"], index.embeddings),
        docstore=InMemoryStore(),
        child_splitter=RecursiveCharacterTextSplitter(chunk_size=60, chunk_overlap=0),
        search_kwargs={"k": 8},
    )
    retriever.add_documents([Document(each.page_content, metadata=each.metadata) for each in whole])
    return retriever


def saved(llm: ChatRagBias, index: FAISS, folder: Path) -> BaseRetriever:
    index.save_local(str(folder / "faiss"))
    loaded = FAISS.load_local(str(folder / "faiss"), index.embeddings, allow_dangerous_deserialization=True)
    return retriever_of(loaded)


def history(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
    rephrase = ChatPromptTemplate.from_messages([MessagesPlaceholder("chat_history"), ("human", "{input}")])
    answer = ChatPromptTemplate.from_messages(
        [("system", SYSTEM), MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )
    aware = create_history_aware_retriever(llm, retriever_of(index), rephrase)
    chain = create_retrieval_chain(aware, create_stuff_documents_chain(llm, answer))
    messages: list[Any] = []

    def ask(question: str) -> Answered:
        result = chain.invoke({"input": question, "chat_history": messages[-2:]})
        messages.extend([HumanMessage(question), AIMessage(result["answer"])])
        return result["answer"], result["context"]

    return ask


class State(TypedDict, total=False):
    question: str
    context: list[Document]
    answer: str


def graph(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
    def retrieve(state: State) -> State:
        return {"context": retriever_of(index).invoke(state["question"])}

    def generate(state: State) -> State:
        text = FORMATS["blank lines"](state["context"])
        return {"answer": str(llm.invoke(PROMPT.invoke({"context": text, "input": state["question"]})).content)}

    nodes = StateGraph(State).add_node(retrieve).add_node(generate)
    app = nodes.add_edge(START, "retrieve").add_edge("retrieve", "generate").add_edge("generate", END).compile()

    def ask(question: str) -> Answered:
        state = app.invoke({"question": question})
        return state["answer"], state["context"]

    return ask


class Talk(MessagesState):
    context: list[Document]


def checkpointed(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
    """One conversation for all questions. Earlier turns stay in the prompt, but not their documents."""

    def turn(state: Talk) -> dict[str, Any]:
        found = retriever_of(index).invoke(str(state["messages"][-1].content))
        system = SYSTEM.format(context=FORMATS["blank lines"](found))
        return {"messages": [llm.invoke([("system", system), *state["messages"][-3:]])], "context": found}

    app = StateGraph(Talk).add_node(turn).add_edge(START, "turn").add_edge("turn", END).compile(InMemorySaver())

    def ask(question: str) -> Answered:
        state = app.invoke({"messages": [HumanMessage(question)]}, {"configurable": {"thread_id": "one"}})
        return str(state["messages"][-1].content), state["context"]

    return ask


def agent(form: str) -> Builder:
    """An agent with a retriever tool. The embedded model cannot call tools, so the first message is scripted."""

    def build(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
        tool = create_retriever_tool(retriever_of(index), "lookup", "Look something up.", response_format=form)
        model = ChatRagBias(lm=llm.lm, max_tokens=80)
        app = create_agent(model, [tool], system_prompt="Answer from what you look up.")

        def ask(question: str) -> Answered:
            call = f'<tool_call>{{"name": "lookup", "arguments": {{"query": "{question}"}}}}</tool_call>'
            with saying(llm.lm, call):
                messages = app.invoke({"messages": [HumanMessage(question)]})["messages"]
            (result,) = [each for each in messages if isinstance(each, ToolMessage)]
            return str(messages[-1].content), result.artifact or retriever_of(index).invoke(question)

        return ask

    return build


def own_code(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
    def ask(question: str) -> Answered:
        found = index.similarity_search(question, k=5)
        with ragbias.documents(found):
            message = llm.invoke(PROMPT.invoke({"context": FORMATS["blank lines"](found), "input": question}))
        return str(message.content), found

    return ask


def parallel(llm: ChatRagBias, index: FAISS, folder: Path) -> Ask:
    """Two answers in parallel, from different documents."""
    other = index.as_retriever(search_kwargs={"k": 2})
    form = FORMATS["blank lines"]
    branch = lambda source: {"context": source | form, "input": RunnablePassthrough()} | PROMPT | llm  # noqa: E731
    chain = RunnableParallel(other=branch(other), answer=branch(retriever_of(index)), context=retriever_of(index))

    def ask(question: str) -> Answered:
        result = chain.invoke(question)
        return str(result["answer"].content), result["context"]

    return ask


PIPELINES: dict[str, Builder] = {
    **{f"LCEL, {name}": lcel(form) for name, form in FORMATS.items()},
    **{
        f"LCEL, {name} on lines of their own": lcel(FORMATS[name], OWN_LINE)
        for name in ("titles", "numbers", "sources")
    },
    "create_retrieval_chain, stock": with_retriever(lambda llm, index, folder: retriever_of(index)),
    "create_retrieval_chain, streamed": streamed,
    "create_retrieval_chain, completion model": completion,
    "create_retrieval_chain, document_prompt": document_prompt,
    "retrievers, history-aware retriever": history,
    "retrievers, EnsembleRetriever": with_retriever(ensemble),
    "retrievers, MultiQueryRetriever": with_retriever(multi_query),
    "retrievers, ContextualCompressionRetriever": with_retriever(compression),
    "retrievers, ParentDocumentRetriever": with_retriever(parents),
    "retrievers, FAISS saved and loaded": with_retriever(saved),
    "graphs, RunnableParallel": parallel,
    "graphs, LangGraph": graph,
    "graphs, LangGraph with a checkpointer": checkpointed,
    "agents, retriever tool": agent("content"),
    "agents, retriever tool with artifact": agent("content_and_artifact"),
    "own code, ragbias.documents": own_code,
}


USUAL = (40, 40, 8)  # documents in the prompts, found ones, answers with the method


def lines(rows: dict[str, tuple[int, int, int]]) -> Iterator[str]:
    """Yield the list and the table of ``docs/results/pipelines.md``."""
    variants: dict[str, list[str]] = {}
    for name in (name for name, counts in rows.items() if counts == USUAL):
        kind, _, variant = name.partition(", ")
        variants.setdefault(kind, []).append(variant)
    yield from (f"- {kind}: {' · '.join(several)}" for kind, several in variants.items())
    for name, counts in rows.items():
        if counts != USUAL:
            yield f"| {name} | {' | '.join(map(str, counts))} |"
