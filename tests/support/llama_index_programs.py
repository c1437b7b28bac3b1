"""Programs from LlamaIndex's documentation, unchanged except for the model."""

import asyncio
from typing import Any

from llama_index.core import Document, PromptTemplate, StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.chat_engine import CondensePlusContextChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import CitationQueryEngine, CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import CompactAndRefine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore
from llama_index.core.tools import QueryEngineTool
from llama_index.core.vector_stores.types import VectorStoreQueryResult
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step
from llama_index.llms.ragbias import RagBiasLLM
from llama_index.vector_stores.faiss import FaissVectorStore

from support.programs import EARLIER, Order, Program
from support.scripted import call, saying

TOP_K = 3


class Permuted(FaissVectorStore):
    """A store that returns nodes in another order, except for a number of first searches."""

    _order: Order[Any] = list
    _left_as_they_are: int = 0

    def query(self, query: Any, **kwargs: Any) -> VectorStoreQueryResult:
        found = super().query(query, **kwargs)
        if self._left_as_they_are:
            self._left_as_they_are -= 1
            return found
        order = self._order(list(range(len(found.ids or []))))
        return VectorStoreQueryResult(
            ids=[(found.ids or [])[i] for i in order], similarities=[(found.similarities or [])[i] for i in order]
        )


def permuted(index: VectorStoreIndex, order: Order[Any], left_as_they_are: int = 0) -> VectorStoreIndex:
    """Return the index with a ``Permuted`` store."""
    store = Permuted(faiss_index=index.vector_store._faiss_index)
    store._order, store._left_as_they_are = order, left_as_they_are
    context = StorageContext.from_defaults(
        vector_store=store, docstore=index.docstore, index_store=index.storage_context.index_store
    )
    return VectorStoreIndex(index_struct=index.index_struct, storage_context=context, embed_model=index._embed_model)


def starter(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """The starter tutorial."""
    return str(index.as_query_engine(llm=llm, similarity_top_k=TOP_K).query(question))


def citations(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """The citation query engine, which writes ``Source 1:`` into each node, on nodes with metadata."""
    return str(CitationQueryEngine.from_args(index, llm=llm, similarity_top_k=TOP_K).query(question))


def chat_engine(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """Three turns of a chat engine, with the context in the system message."""
    engine = index.as_chat_engine(chat_mode="condense_plus_context", llm=llm, similarity_top_k=TOP_K)
    assert isinstance(engine, CondensePlusContextChatEngine)
    return str([engine.chat(query) for query in (*EARLIER, question)][-1])


def context_in_memory(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """A hand-written chat loop whose memory contains each turn's context."""
    retriever, memory = index.as_retriever(similarity_top_k=TOP_K), ChatMemoryBuffer.from_defaults(token_limit=20_000)
    for query in (*EARLIER, question):
        context = "\n\n".join(each.get_content() for each in retriever.retrieve(query))
        memory.put(ChatMessage(role="user", content=f"Context:\n{context}\n\nQuestion: {query}"))
        memory.put(llm.chat(memory.get()).message)
    return str(memory.get()[-1].content)


def fusion(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """Reciprocal rank fusion over two retrievers of one index."""
    retrievers = [index.as_retriever(similarity_top_k=TOP_K), index.as_retriever(similarity_top_k=2)]
    fused = QueryFusionRetriever(
        retrievers, llm=llm, similarity_top_k=TOP_K, num_queries=1, mode="simple", use_async=False
    )
    return str(RetrieverQueryEngine.from_args(fused, llm=llm).query(question))


def custom_engine(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """The documentation's custom query engine: retrieve, join the texts, fill a template, complete."""
    template = PromptTemplate(
        "Context information is below.\n---------------------\n{context_str}\n---------------------\n"
        "Given the context information and not prior knowledge, answer the query.\nQuery: {query_str}\nAnswer: "
    )

    class StringQueryEngine(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            nodes = index.as_retriever(similarity_top_k=TOP_K).retrieve(query_str)
            context = "\n\n".join(each.node.get_content() for each in nodes)
            return str(llm.complete(template.format(context_str=context, query_str=query_str)))

    return str(StringQueryEngine().query(question))


def joined_nodes(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """The last step of the corrective RAG workflow: join the nodes' texts in one document and query it."""
    nodes = index.as_retriever(similarity_top_k=TOP_K).retrieve(question)
    document = Document(text="\n".join(each.get_content() for each in nodes))
    return str(SummaryIndex.from_documents([document]).as_query_engine(llm=llm).query(question))


class Retrieved(Event):
    nodes: list[NodeWithScore]


def workflow(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """The workflow tutorial, with one step that retrieves and one that synthesises."""

    class RAG(Workflow):
        @step
        async def retrieve(self, ctx: Context, ev: StartEvent) -> Retrieved:
            await ctx.store.set("query", ev.query)
            return Retrieved(nodes=await index.as_retriever(similarity_top_k=TOP_K).aretrieve(ev.query))

        @step
        async def synthesize(self, ctx: Context, ev: Retrieved) -> StopEvent:
            summarizer = CompactAndRefine(llm=llm)
            return StopEvent(result=await summarizer.asynthesize(await ctx.store.get("query"), nodes=ev.nodes))

    async def ask() -> str:
        return str(await RAG(timeout=60).run(query=question))

    return asyncio.run(ask())


class Graded(Event):
    relevant: list[str]


def corrective(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """The corrective RAG workflow: grade each node and join the relevant nodes into a new document."""
    grade = "As a grader, evaluate a document.\n\nRetrieved document:\n{context_str}\n\nUser question:\n{query_str}\n"

    class CorrectiveRAG(Workflow):
        @step
        async def retrieve(self, ctx: Context, ev: StartEvent) -> Retrieved:
            return Retrieved(nodes=index.as_retriever(similarity_top_k=TOP_K).retrieve(ev.query))

        @step
        async def evaluate(self, ctx: Context, ev: Retrieved) -> Graded:
            relevant = []
            for node in ev.nodes:
                answer = await llm.acomplete(grade.format(context_str=node.text, query_str=question))
                if answer.text.lower().strip() == "yes":
                    relevant.append(node.text)
            return Graded(relevant=relevant)

        @step
        async def answer(self, ctx: Context, ev: Graded) -> StopEvent:
            documents = [Document(text="\n".join(ev.relevant) + "\n" + "")]  # the search step added nothing
            engine = SummaryIndex.from_documents(documents).as_query_engine(llm=llm)
            return StopEvent(result=engine.query(question))

    async def ask() -> str:
        with saying(llm.lm, *["yes"] * TOP_K):
            return str(await CorrectiveRAG(timeout=60).run(query=question))

    return asyncio.run(ask())


def agent(llm: RagBiasLLM, index: VectorStoreIndex, question: str) -> str:
    """The starter tutorial's agent with a query engine as its tool."""
    engine = index.as_query_engine(llm=llm, similarity_top_k=TOP_K)
    tool = QueryEngineTool.from_defaults(engine, name="stations", description="Knows all about stations.")
    model = RagBiasLLM(lm=llm.lm, max_new_tokens=120)

    async def ask() -> str:
        with saying(llm.lm, call("stations", f'{{"input": "{question}"}}')):
            return str(await FunctionAgent(tools=[tool], llm=model, streaming=False).run(question))

    return asyncio.run(ask())


PROGRAMS: dict[str, Program] = {
    "starter tutorial": Program(starter, TOP_K),
    "citation query engine": Program(citations, TOP_K, {"strip_numbering": True}),
    "chat engine": Program(chat_engine, TOP_K),
    "chat loop with a memory": Program(context_in_memory, TOP_K),
    "fusion retriever": Program(fusion, TOP_K),
    "custom query engine": Program(custom_engine, TOP_K),
    "joined nodes": Program(joined_nodes, TOP_K),
    "workflow": Program(workflow, TOP_K),
    "agent with a query engine": Program(agent, TOP_K),
    "corrective RAG workflow": Program(corrective, TOP_K),
}
EARLIER_SEARCHES = {"chat engine": len(EARLIER), "chat loop with a memory": len(EARLIER)}
