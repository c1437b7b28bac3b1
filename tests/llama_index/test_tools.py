"""Tools through the chat template: prompts and parsed calls."""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.tools import FunctionTool, QueryEngineTool, RetrieverTool
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.ragbias import RagBiasLLM
from pydantic import BaseModel

from ragbias.errors import RagBiasError
from ragbias.generation import GenerationSettings
from ragbias.lm import DebiasedLM
from support.scripted import TOOL_TEMPLATE, RecordingLM, call, saying, with_template

TWO_CALLS = "\n".join(["I look.", call("add", '{"a": 2, "b": 3}'), call("add", '{"a": 4, "b": 5}')])
MALFORMED = "<tool_call>\nadd 2 and 3\n</tool_call>"


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def greet(name: str) -> str:
    """Greets a person."""
    return f"Hello {name}"


ADD, GREET = FunctionTool.from_defaults(add), FunctionTool.from_defaults(greet)


class Gate(BaseModel):
    """A gate and its colour."""

    name: str
    color: str


@pytest.fixture
def scripted(lm: DebiasedLM) -> Iterator[Callable[..., RagBiasLLM]]:
    with ExitStack() as scripts:

        def make(*answers: str, **fields: Any) -> RagBiasLLM:
            template = fields.pop("chat_template", TOOL_TEMPLATE) or lm.tokenizer.chat_template
            recording = RecordingLM(with_template(lm, template))
            scripts.enter_context(saying(recording, *answers))
            return RagBiasLLM(lm=recording, **fields)

        yield make


def selected(llm: RagBiasLLM, response: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(each.tool_name, each.tool_kwargs) for each in llm.get_tool_calls_from_response(response)]


def test_model_calls_tools_if_its_chat_template_prints_them(scripted, make_llm):
    assert scripted().metadata.is_function_calling_model
    assert not make_llm().metadata.is_function_calling_model
    assert not scripted(is_chat_model=False).metadata.is_function_calling_model
    assert not scripted(messages_to_prompt=str).metadata.is_function_calling_model
    broken = "{{ tools | nosuchfilter }}"
    assert not scripted(chat_template=broken).metadata.is_function_calling_model


def test_tools_are_in_the_prompt_and_calls_in_the_response(scripted):
    llm = scripted(TWO_CALLS)
    response = llm.chat_with_tools([ADD, GREET], "What is 2 + 3?", allow_parallel_tool_calls=True)
    (prompt,) = llm.lm.prompts
    assert "Adds two numbers." in prompt
    assert "Greets a person." in prompt
    assert selected(llm, response) == [("add", {"a": 2, "b": 3}), ("add", {"a": 4, "b": 5})]
    assert response.message.content == "I look."
    assert response.raw["usage"]["prompt_tokens"] == response.additional_kwargs["prompt_tokens"] > 0
    ids = [each.tool_id for each in llm.get_tool_calls_from_response(response)]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"[0-9a-z]{9}", each) for each in ids)


async def test_all_four_forms_see_the_same_call(scripted):
    llm = scripted(*[TWO_CALLS] * 4)
    question = {"tools": [ADD], "user_msg": "What is 2 + 3?"}
    responses = [llm.chat_with_tools(**question), await llm.achat_with_tools(**question)]
    streams = [
        list(llm.stream_chat_with_tools(**question)),
        [chunk async for chunk in await llm.astream_chat_with_tools(**question)],
    ]
    responses += [stream[-1] for stream in streams]
    assert [selected(llm, response) for response in responses] == [[("add", {"a": 2, "b": 3})]] * 4
    for stream in streams:
        assert "".join(chunk.delta or "" for chunk in stream).strip() == "I look."
        assert all("tool_call" not in str(chunk.message.content) for chunk in stream)


def test_stream_without_calls_shows_all_of_its_text(scripted):
    answer = " As <b>bold</b> [1] as ever. "
    stream = list(scripted(answer).stream_chat_with_tools([ADD], "Who is bold?"))
    assert "".join(chunk.delta or "" for chunk in stream) == stream[-1].message.content == answer


def test_one_tool_can_be_chosen_and_none(scripted):
    llm = scripted(*["Fine."] * 5)
    choices: list[Any] = ["add", {"type": "function", "function": {"name": "add"}}, "required", "none"]
    for choice in choices:
        llm.chat_with_tools([ADD, GREET], "Hello", tool_choice=choice)
    shown = [("Adds two" in prompt, "Greets a" in prompt) for prompt in llm.lm.prompts]
    assert shown == [(True, False), (True, False), (True, True), (False, False)]
    with pytest.raises(RagBiasError, match=r"tool_choice='subtract'.*'add', 'greet'"):
        llm.chat_with_tools([ADD, GREET], "Hello", tool_choice="subtract")


def test_missing_call_is_an_error_where_one_is_needed(scripted):
    llm = scripted("Five.", MALFORMED)
    response = llm.chat_with_tools([ADD], "What is 2 + 3?")
    assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(RagBiasError, match="the answer has none"):
        llm.get_tool_calls_from_response(response)
    response = llm.chat_with_tools([ADD], "What is 2 + 3?")
    assert "add 2 and 3" in response.message.content
    assert response.additional_kwargs["invalid_tool_calls"]
    with pytest.raises(RagBiasError, match=r"only malformed ones \(.*JSON"):
        llm.get_tool_calls_from_response(response)


def test_tools_for_a_template_without_them_are_refused(llm):
    with pytest.raises(RagBiasError, match="does not print tools.*ReActAgent"):
        llm.chat_with_tools([ADD], "What is 2 + 3?")


def test_calls_and_results_go_back_into_the_prompt(scripted):
    llm = scripted("Five.")
    block = ToolCallBlock(tool_call_id="abcdefghi", tool_name="add", tool_kwargs='{"a": 2, "b": 3}')
    history = [
        ChatMessage(content="What is 2 + 3?"),
        ChatMessage(role=MessageRole.ASSISTANT, blocks=[TextBlock(text="I look."), block]),
        ChatMessage(role=MessageRole.TOOL, content="5", additional_kwargs={"tool_call_id": "abcdefghi"}),
    ]
    llm.chat(history)
    calls = call("add", '{"a": 2, "b": 3}')
    assert f"<|assistant|>\nI look.{calls}<|user|>\n5<|assistant|>\n" in llm.lm.prompts[0]


async def test_an_agents_documents_are_found_in_the_tool_message(scripted, index):
    tool = RetrieverTool.from_defaults(index.as_retriever(similarity_top_k=4), name="search", description="Searches.")
    llm = scripted(call("search", '{"input": "the passphrase"}'), "The passphrase is unknown.")
    result = await FunctionAgent(tools=[tool], llm=llm).run("What is the passphrase?")
    assert str(result) == "The passphrase is unknown."
    first, second = llm.lm.reports
    assert first["n_found"] == 0
    assert (second["source"], second["n_found"], second["method_ran"]) == ("registry", 4, "pine")


@pytest.mark.parametrize("streaming", [True, False])
async def test_agent_calls_a_function(scripted, streaming):
    llm = scripted(call("add", '{"a": 2, "b": 3}'), "It is 5.")
    agent = FunctionAgent(tools=[ADD], llm=llm, streaming=streaming)
    assert str(await agent.run("What is 2 + 3?")) == "It is 5."
    assert "<|user|>\n5<|assistant|>\n" in llm.lm.prompts[1]


async def test_the_last_report_after_an_agent_is_no_earlier_one(scripted):
    llm = scripted("Hello.", call("add", '{"a": 2, "b": 3}'), "It is 5.")
    llm.complete("Hello!")
    assert llm.last_report is not None
    await FunctionAgent(tools=[ADD], llm=llm).run("What is 2 + 3?")
    assert llm.last_report is None


async def test_react_agent_needs_no_tools_in_the_template(scripted):
    thought = 'Thought: I add.\nAction: add\nAction Input: {"a": 2, "b": 3}'
    llm = scripted(thought, "Thought: I can answer without using any more tools.\nAnswer: 5", chat_template=None)
    assert str(await ReActAgent(tools=[ADD], llm=llm).run("What is 2 + 3?")) == "5"
    assert "Observation: 5" in llm.lm.prompts[1]


@pytest.mark.parametrize("template", [TOOL_TEMPLATE, None])
def test_router_lets_the_model_choose(scripted, index, template):
    choice = '{"index": 2, "reason": "It is about gates."}'
    as_call, as_text = call("SingleSelection", choice), '[{"choice": 2, "reason": "It is about gates."}]'
    llm = scripted(as_call if template else as_text, "Blue.", chat_template=template)
    engine = index.as_query_engine(llm=llm, similarity_top_k=4)
    tools = [QueryEngineTool.from_defaults(engine, name=name, description=name) for name in ("mottos", "gates")]
    answer = RouterQueryEngine.from_defaults(tools, llm=llm).query("Which gate?")
    assert (str(answer), answer.metadata["selector_result"].inds) == ("Blue.", [1])
    assert [report["n_found"] for report in llm.lm.reports] == [0, 4]


def predictions(llm: RagBiasLLM) -> Sequence[BaseModel]:
    template = PromptTemplate("Which gate? {question}")
    chat = llm.as_structured_llm(Gate).chat([ChatMessage(content="Which gate?")])
    stream = list(llm.stream_structured_predict(Gate, template, question="Blue."))
    return [llm.structured_predict(Gate, template, question="Blue."), chat.raw, stream[-1]]


GATE = '{"name": "Ivory", "color": "blue"}'


def test_structured_output_through_a_tool_call(scripted):
    llm = scripted(*[call("Gate", GATE)] * 3)
    assert [gate.model_dump() for gate in predictions(llm)] == [{"name": "Ivory", "color": "blue"}] * 3
    assert all("A gate and its colour." in prompt for prompt in llm.lm.prompts)


@pytest.mark.parametrize("fields", [{"chat_template": None}, {"pydantic_program_mode": PydanticProgramMode.LLM}])
def test_structured_output_as_text(scripted, fields):
    llm = scripted(*[f"Here it is: {GATE}"] * 3, **fields)
    template = PromptTemplate("Which gate? {question}")
    assert llm.structured_predict(Gate, template, question="Blue.") == Gate(name="Ivory", color="blue")
    assert llm.as_structured_llm(Gate).chat([ChatMessage(content="Which?")]).raw.color == "blue"


async def test_structured_query_engine_finds_the_documents(scripted, index):
    llm = scripted(*[call("Gate", GATE)] * 2)
    engine = index.as_query_engine(llm=llm.as_structured_llm(Gate), similarity_top_k=4)
    assert engine.query("Which gate?").response.color == "blue"
    assert (await engine.aquery("Which gate?")).response.color == "blue"
    assert [(report["source"], report["n_found"]) for report in llm.lm.reports] == [("run", 4)] * 2


def test_required_call_is_begun_in_the_prompt(scripted):
    llm = scripted(*[call("add", '{"a": 2, "b": 3}')] * 4)
    responses = [
        llm.chat_with_tools([ADD], "What is 2 + 3?", tool_required=True),
        llm.chat_with_tools([ADD, GREET], "What is 2 + 3?", tool_required=True),
        llm.chat_with_tools([ADD, GREET], "What is 2 + 3?", tool_choice="add"),
        list(llm.stream_chat_with_tools([ADD], "What is 2 + 3?", tool_required=True))[-1],
    ]
    assert [selected(llm, response) for response in responses] == [[("add", {"a": 2, "b": 3})]] * 4
    named, unnamed = '<tool_call>\n{"name": "add", "arguments":', '<tool_call>\n{"name": "'
    ends = [prompt.rpartition("<|assistant|>\n")[2] for prompt in llm.lm.prompts]
    assert ends == [named, unnamed, named, named]
    assert not responses[0].message.content


async def test_a_required_call_that_cannot_be_forced_is_warned_about(scripted):
    llm = scripted(*["Fine."] * 5, chat_template=TOOL_TEMPLATE.replace("tool_call>", "function>"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            llm.chat_with_tools([ADD], "What is 2 + 3?", tool_required=True)
        await llm.achat_with_tools([ADD], "What is 2 + 3?", tool_required=True)
        llm.chat_with_tools([ADD], "What is 2 + 3?")
        llm.chat([ChatMessage(content="Hello")], tool_required=True)
    messages = [str(each.message) for each in caught if each.filename == __file__ and "tool call" in str(each.message)]
    assert len(messages) == 2
    assert re.match(r"a tool call is required, but cannot be forced, .* unknown format; .*Mode\.LLM", messages[0])
    assert all(prompt.endswith("<|assistant|>\n") for prompt in llm.lm.prompts)


def test_markers_of_calls_stay_in_the_text(scripted):
    llm = scripted("Fine.", "Fine.")
    seen: list[GenerationSettings] = []
    answer = llm.lm.answer
    llm.lm.answer = lambda requests, settings, cancelled: (seen.append(settings), answer(requests, settings))[1]
    llm.chat_with_tools([ADD], "Hello")
    llm.chat([ChatMessage(content="Hello")])
    assert "[TOOL_CALLS]" in seen[0].keep_special
    assert not seen[1].keep_special
