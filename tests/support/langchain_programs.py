"""Programs from LangChain's tutorials and cookbooks, unchanged except for the model."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, dynamic_prompt
from langchain.tools import tool
from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from langgraph.graph import END, START, StateGraph

from langchain_ragbias import ChatRagBias, RagBiasPipeline
from support.programs import EARLIER, Order, Program
from support.scripted import call, saying

RLM_PROMPT = ChatPromptTemplate.from_messages(
    [
        (
            "human",
            "You are an assistant for question-answering tasks. Use the following pieces of retrieved context to "
            "answer the question. If you don't know the answer, just say that you don't know. Use three sentences "
            "maximum and keep the answer concise.\nQuestion: {question} \nContext: {context} \nAnswer:",
        )
    ]
)


class Permuted(FAISS):
    """An index that returns the documents of the last turn's search in another order."""

    order: Order[Any]

    @classmethod
    def of(cls, index: FAISS, order: Order[Any]) -> Permuted:
        store = cls(index.embeddings, index.index, index.docstore, index.index_to_docstore_id)
        store.order = order
        return store

    def similarity_search_with_score(self, query: str, *args: Any, **kwargs: Any) -> list[tuple[Document, float]]:
        found = super().similarity_search_with_score(query, *args, **kwargs)
        return found if query in EARLIER else self.order(found)


def joined(found: Sequence[Document]) -> str:
    return "\n\n".join(each.page_content for each in found)


def agents_model(llm: ChatRagBias) -> ChatRagBias:
    """Allow enough tokens for a tool call."""
    return ChatRagBias(lm=llm.lm, max_tokens=80)


def text_of(message: Any) -> str:
    return str(message.content)


# the RAG tutorial


def rag_chain(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """The tutorial's chain: one middleware that searches the store and writes the prompt."""

    @dynamic_prompt
    def prompt_with_context(request: ModelRequest) -> str:
        found = store.similarity_search(request.state["messages"][-1].text)
        return f"You are a helpful assistant. Use the following context in your response:\n\n{joined(found)}"

    agent = create_agent(llm, tools=[], middleware=[prompt_with_context])
    return text_of(agent.invoke({"messages": [HumanMessage(question)]})["messages"][-1])


def rag_agent(llm: ChatRagBias, store: FAISS, question: str, file: str = "") -> str:
    """The tutorial's agent: a tool that prints metadata and returns the documents as artifact."""

    @tool(response_format="content_and_artifact")
    def retrieve_context(query: str) -> tuple[str, list[Document]]:
        """Retrieve information to help answer a query."""
        found = store.similarity_search(query, k=3)
        sources = [file or each.metadata for each in found]
        texts = [f"Source: {name}\nContent: {each.page_content}" for name, each in zip(sources, found, strict=True)]
        return "\n\n".join(texts), found

    agent = create_agent(
        agents_model(llm), [retrieve_context], system_prompt="You have access to a tool that retrieves context."
    )
    with saying(llm.lm, call("retrieve_context", f'{{"query": "{question}"}}')):
        return text_of(agent.invoke({"messages": [HumanMessage(question)]})["messages"][-1])


class State(TypedDict, total=False):
    question: str
    context: list[Document]
    answer: str


def rag_graph(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """The tutorial's earlier version: retrieve and generate are nodes of a graph."""

    def retrieve(state: State) -> State:
        return {"context": store.similarity_search(state["question"])}

    def generate(state: State) -> State:
        messages = RLM_PROMPT.invoke({"question": state["question"], "context": joined(state["context"])})
        return {"answer": text_of(llm.invoke(messages))}

    graph = StateGraph(State).add_sequence([retrieve, generate]).add_edge(START, "retrieve").compile()
    return str(graph.invoke({"question": question})["answer"])


# chat loops


def chat_loop(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """Separate calls of a retriever and the model. The history contains the documents of every turn."""
    retriever = store.as_retriever(search_kwargs={"k": 3})
    history: list[Any] = [SystemMessage("Answer from the context.")]
    for query in (*EARLIER, question):
        found = retriever.invoke(query)
        history.append(HumanMessage(f"Context:\n{joined(found)}\n\nQuestion: {query}"))
        history.append(AIMessage(text_of(llm.invoke(history))))
    return text_of(history[-1])


def flat_history(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """A chat loop with a completion model and the history as one text."""
    model = RagBiasPipeline(lm=llm.lm, max_tokens=llm.max_tokens, strip_numbering=llm.options.strip_numbering)
    retriever = store.as_retriever(search_kwargs={"k": 3})
    history = answer = ""
    for query in (*EARLIER, question):
        history += f"[INST] Context:\n{joined(retriever.invoke(query))}\n\nQuestion: {query} [/INST]"
        answer = model.invoke(history)
        history += f" {answer}\n"
    return answer


def history_aware(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """The conversational tutorial: the question is rephrased, and the context is in the system message."""
    rephrase = ChatPromptTemplate.from_messages([MessagesPlaceholder("chat_history"), ("human", "{input}")])
    answer = ChatPromptTemplate.from_messages(
        [("system", "Answer the question.\n\n{context}"), MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )
    retriever = create_history_aware_retriever(llm, store.as_retriever(), rephrase)
    chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, answer))
    history: list[Any] = [HumanMessage("What of the lighthouse?"), AIMessage("It is closed.")]
    return str(chain.invoke({"input": question, "chat_history": history})["answer"])


# several retrievals


def two_retrievers(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """An agent that calls two retriever tools in turn."""
    tools = [
        create_retriever_tool(store.as_retriever(search_kwargs={"k": 3}), name, f"Searches {name}.")
        for name in ("gates", "mottos")
    ]
    agent = create_agent(agents_model(llm), tools, system_prompt="Look things up before you answer.")
    calls = [call("gates", f'{{"query": "{question}"}}'), call("mottos", '{"query": "the motto of the lighthouse"}')]
    with saying(llm.lm, *calls):
        return text_of(agent.invoke({"messages": [HumanMessage(question)]})["messages"][-1])


def one_retriever_for_both(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """An agent with one tool that searches both stores."""

    @tool(response_format="content_and_artifact")
    def look_up(query: str) -> tuple[str, list[Document]]:
        """Search the gates and the mottos."""
        found = [
            each
            for searched in (query, "the motto of the lighthouse")
            for each in store.as_retriever(search_kwargs={"k": 3}).invoke(searched)
        ]
        found = list({each.page_content: each for each in found}.values())
        return joined(found), found

    agent = create_agent(agents_model(llm), [look_up], system_prompt="Look things up before you answer.")
    with saying(llm.lm, call("look_up", f'{{"query": "{question}"}}')):
        return text_of(agent.invoke({"messages": [HumanMessage(question)]})["messages"][-1])


def rag_fusion(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """Several searches, fused by reciprocal rank. Ties keep their order.

    The prompt contains the list of pairs of document and score as Python prints it.
    """
    retriever = store.as_retriever(search_kwargs={"k": 3})
    queries = RunnableLambda(lambda value: [value["question"], f"More on this: {value['question']}"])

    def fused(results: list[list[Document]]) -> list[tuple[Document, float]]:
        texts = dict.fromkeys(dumps(each) for found in results for each in found)
        return [(loads(text), 0.5) for text in texts]

    chain = {"context": queries | retriever.map() | fused, "question": operator.itemgetter("question")}
    prompt = ChatPromptTemplate.from_template(
        "Answer the following question based on this context:\n\n{context}\n\nQuestion: {question}\n"
    )
    return str((chain | prompt | llm | StrOutputParser()).invoke({"question": question}))


STEP_BACK = (
    "You are an expert of world knowledge. Your response should be comprehensive and not contradicted with the "
    "following context if they are relevant.\n\n# {normal_context}\n# {step_back_context}\n\n"
    "# Original Question: {question}\n# Answer:"
)


def step_back(llm: ChatRagBias, store: FAISS, question: str, template: str = STEP_BACK) -> str:
    """Two contexts in one prompt, for the question and for a more general one."""
    retriever = store.as_retriever(search_kwargs={"k": 2})
    prompt = ChatPromptTemplate.from_template(template)
    chain = {
        "normal_context": RunnableLambda(lambda value: value["question"]) | retriever | joined,
        "step_back_context": RunnableLambda(lambda value: "What is a lighthouse?") | retriever | joined,
        "question": operator.itemgetter("question"),
    }
    return str((chain | prompt | llm | StrOutputParser()).invoke({"question": question}))


class Graded(TypedDict, total=False):
    question: str
    documents: list[Document]
    relevant: Annotated[list[Document], operator.add]
    generation: str


def reliable_rag(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """Retrieve, grade each document, answer from the relevant documents, and check the answer against them."""
    grade = ChatPromptTemplate.from_template(
        "Here is the retrieved document: \n\n {document} \n\n Here is the user question: {question} \n Is it relevant?"
    )
    check = ChatPromptTemplate.from_template("Set of facts: \n\n {documents} \n\n LLM generation: {generation}")

    def retrieve(state: Graded) -> Graded:
        return {"documents": store.as_retriever().invoke(state["question"])}

    def graded(state: Graded) -> Graded:
        chain = grade | llm | StrOutputParser()
        grades = [
            (chain.invoke({"document": each.page_content, "question": state["question"]}), each)
            for each in state["documents"]
        ]
        return {
            "relevant": [each for is_relevant, each in grades if is_relevant][:3]
            if len(grades) < 4
            else [e for _, e in grades]
        }

    def generate(state: Graded) -> Graded:
        chain = RLM_PROMPT | llm | StrOutputParser()
        answer = chain.invoke({"context": joined(state["relevant"]), "question": state["question"]})
        (check | llm).invoke({"documents": joined(state["relevant"]), "generation": answer})
        return {"generation": answer}

    graph = StateGraph(Graded).add_node(retrieve).add_node(graded).add_node(generate)
    graph.add_edge(START, "retrieve").add_edge("retrieve", "graded").add_edge("graded", "generate")
    return str(graph.add_edge("generate", END).compile().invoke({"question": question})["generation"])


# citations and other templates


def formatted(form: Any, prompt: ChatPromptTemplate = RLM_PROMPT) -> Any:
    """Make a program whose chain formats the documents with ``form``."""

    def run(llm: ChatRagBias, store: FAISS, question: str) -> str:
        retriever = store.as_retriever(search_kwargs={"k": 4})
        chain = {"context": retriever | form, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()
        return str(chain.invoke(question))

    return run


def source_ids(found: Sequence[Document]) -> str:
    return "\n\n".join(
        f"Source ID: {i}\nArticle Title: {each.metadata['title']}\nArticle Snippet: {each.page_content}"
        for i, each in enumerate(found)
    )


def doc_tags(found: Sequence[Document]) -> str:
    return "\n".join(
        f"<doc{i}>:\nTitle:{each.metadata['title']}\nContent:{each.page_content}\n</doc{i}>\n"
        for i, each in enumerate(found, 1)
    )


def indexed_xml(found: Sequence[Document]) -> str:
    inner = "\n".join(
        f'<document index="{i}">\n<source>{each.metadata["title"]}</source>\n'
        f"<document_content>\n{each.page_content}\n</document_content>\n</document>"
        for i, each in enumerate(found, 1)
    )
    return f"<documents>\n{inner}\n</documents>"


def xml_tags(llm: ChatRagBias, store: FAISS, question: str) -> str:
    """The stuff chain with a tag around each document, and a tag around all documents."""
    prompt = ChatPromptTemplate.from_template("Use them.\n<documents>\n{context}\n</documents>\n\n{input}")
    item = PromptTemplate.from_template("<document>\n{page_content}\n</document>")
    stuff = create_stuff_documents_chain(llm, prompt, document_prompt=item, document_separator="\n")
    return str(create_retrieval_chain(store.as_retriever(), stuff).invoke({"input": question})["answer"])


def with_one_made_by_hand(found: Sequence[Document]) -> str:
    return str([*found, Document("The Owl Station has no passphrase at all, and never had one.")])


def index_in_metadata(found: Sequence[Document]) -> str:
    for index, each in enumerate(found):
        each.metadata["index"] = index
    return "\n\n".join(f"Source: {each.metadata['index']} \n {each.page_content}" for each in found)


PROGRAMS: dict[str, Program] = {
    "RAG tutorial, chain with dynamic_prompt": Program(rag_chain, 4),
    "RAG tutorial, agent": Program(rag_agent, 3),
    "RAG tutorial, agent, chunks of one file": Program(partial(rag_agent, file="nike.pdf"), 3),
    "RAG tutorial, graph": Program(rag_graph, 4),
    "conversational RAG": Program(history_aware, 4),
    "chat loop": Program(chat_loop, 3),
    "chat loop, one flat text": Program(flat_history, 3),
    "agent with two retrievers": Program(two_retrievers, 6, remedied=one_retriever_for_both),
    "RAG-fusion": Program(rag_fusion, 4),
    "step-back prompting": Program(
        step_back, 4, remedied=partial(step_back, template=STEP_BACK.replace("\n# {step", "\n\n{step"))
    ),
    "reliable RAG": Program(reliable_rag, 4),
    "citations by source id": Program(formatted(source_ids), 4, {"strip_numbering": True}),
    "numbered tags": Program(formatted(doc_tags), 4, {"strip_numbering": True}),
    "indexed XML": Program(formatted(indexed_xml), 4, {"strip_numbering": True}),
    "XML tags": Program(xml_tags, 4),
    "printed list with a document made by hand": Program(formatted(with_one_made_by_hand), 4),
    "numbers in the metadata": Program(formatted(index_in_metadata), 4, {"strip_numbering": True}),
    "cut texts": Program(formatted(lambda found: "\n\n".join(each.page_content[:60] for each in found)), 4),
    "one line each": Program(
        formatted(lambda found: "\n".join(f"- {each.page_content}".replace("\n", " ") for each in found)), 4
    ),
    "stuffed by hand": Program(
        formatted(joined, ChatPromptTemplate.from_messages([("system", "{context}"), ("human", "{question}")])), 4
    ),
}
