"""Invocation of agents, graphs, engines, workflows and functions."""

import json
from typing import TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import create_retriever_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from langchain_ragbias import ChatRagBias
from ragbias import DebiasedLM
from ragbias.errors import RunError
from ragbias_eval.audit.pipeline import from_pipeline
from support.audited_pipelines import PROMPT, QUESTIONS, TEXTS, Unframed, chat, joined, retrieve
from support.scripted import call, saying, with_template


class ByQuestion(BaseRetriever):
    """Retrieve the documents of a question."""

    def _get_relevant_documents(self, query, *, run_manager):
        return retrieve(query)


@pytest.fixture(scope="module")
def tiny_with_tools(tiny) -> DebiasedLM:
    return with_template(tiny, method="none", name="tiny")


def calls(questions):
    """The output of an agent's model for each question: a tool call, then an answer."""
    return [each for one in questions for each in (call("lookup", json.dumps({"query": one.question})), "I know.")]


def documents_of(cases):
    return [[text.strip() for text in each.prompt.documents] for each in cases]


@pytest.mark.parametrize("settings", [{}, {"checkpointer": True}], ids=["plain", "with a checkpointer"])
def test_an_agent_gets_each_question_as_separate_messages(tiny_with_tools, settings):
    tool = create_retriever_tool(ByQuestion(), "lookup", "Look something up.", response_format="content_and_artifact")
    if settings:
        settings = {"checkpointer": InMemorySaver()}
    llm = ChatRagBias(lm=tiny_with_tools, method="none", max_tokens=80)
    agent = create_agent(llm, [tool], system_prompt="Answer from what you look up.", **settings)
    with saying(tiny_with_tools, *calls(QUESTIONS)):
        cases = from_pipeline(agent, QUESTIONS)
    assert documents_of(cases) == list(TEXTS.values())
    first, second = (str(case.prompt) for case in cases)
    assert QUESTIONS[0].question in first and QUESTIONS[0].question not in second
    again = [tiny_with_tools.tokenizer.decode(ids) for ids in cases[0].request([3, 1, 5, 0, 4, 2]).tokens.documents]
    assert [text.strip() for text in again] == [TEXTS[QUESTIONS[0].question][index] for index in (3, 1, 5, 0, 4, 2)]


def test_graphs_take_messages_or_a_question(tiny):
    llm = chat(tiny)

    def answer(state):
        question = state["messages"][-1].content
        return {"messages": [llm.invoke(PROMPT.invoke({"context": joined(retrieve(question)), "input": question}))]}

    class State(TypedDict, total=False):
        question: str
        answer: str

    def respond(state):
        text = joined(retrieve(state["question"]))
        return {"answer": llm.invoke(PROMPT.invoke({"context": text, "input": state["question"]})).content}

    for kind, node in ((MessagesState, answer), (State, respond)):
        graph = StateGraph(kind).add_node("node", node).add_edge(START, "node").add_edge("node", END).compile()
        assert documents_of(from_pipeline(graph, QUESTIONS)) == list(TEXTS.values())


def llama_index_retriever():
    from llama_index.core.retrievers import BaseRetriever as Base
    from llama_index.core.schema import NodeWithScore, TextNode

    class Retriever(Base):
        def _retrieve(self, query_bundle):
            (question,) = (each for each in TEXTS if each in query_bundle.query_str)  # a tool writes more beside it
            return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in TEXTS[question]]

    return Retriever()


def test_llama_index_chat_engine_forgets_the_questions_before(tiny):
    from llama_index.core.chat_engine import ContextChatEngine
    from llama_index.llms.ragbias import RagBiasLLM

    engine = ContextChatEngine.from_defaults(
        retriever=llama_index_retriever(), llm=RagBiasLLM(lm=tiny, method="none", max_new_tokens=8)
    )
    assert documents_of(from_pipeline(engine, QUESTIONS)) == list(TEXTS.values())


def test_llama_index_agent_runs_in_a_loop_of_its_own(tiny_with_tools):
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.tools import RetrieverTool
    from llama_index.llms.ragbias import RagBiasLLM

    tool = RetrieverTool.from_defaults(llama_index_retriever(), name="lookup", description="Looks up.")
    llm = RagBiasLLM(lm=tiny_with_tools, method="none", max_new_tokens=80)
    scripts = [each.replace('"query"', '"input"') for each in calls(QUESTIONS)]
    with saying(tiny_with_tools, *scripts):
        cases = from_pipeline(FunctionAgent(tools=[tool], llm=llm), QUESTIONS)
    assert documents_of(cases) == list(TEXTS.values())


def test_llama_index_workflow_is_run_under_a_usual_key(tiny):
    from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

    class Answering(Workflow):
        @step
        async def answer(self, started: StartEvent) -> StopEvent:
            return StopEvent(result=Unframed(tiny)(started.query))

    assert documents_of(from_pipeline(Answering(), QUESTIONS)) == list(TEXTS.values())


def test_what_is_left_to_do_is_done_before_the_next_question(tiny):
    """A coroutine is awaited, and a stream is read to its end."""
    ask = Unframed(tiny)

    async def awaited(question):
        return ask(question)

    def streamed(question):
        yield ask(question)

    async def streamed_later(question):
        yield ask(question)

    for pipeline in (awaited, streamed, streamed_later):
        assert documents_of(from_pipeline(pipeline, QUESTIONS)) == list(TEXTS.values())


def test_every_attempted_call_is_reported():
    with pytest.raises(RunError, match=r"invoke\(question\): KeyError: 'x'; invoke\({'input': question}\): KeyError"):
        from_pipeline(RunnableLambda(lambda value: {}["x"]), QUESTIONS)
