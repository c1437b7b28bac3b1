"""Tools reach the model through its chat template, and its tool calls become LangChain's."""

import copy
import json

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from langchain_ragbias import ChatRagBias
from ragbias import DebiasedLM
from ragbias.errors import ArgumentError, WrongTypeError
from support.scripted import RecordingLM, saying, with_template


@tool
def search(query: str, limit: int = 3) -> str:
    """Look something up."""
    return query * limit


class Weather(BaseModel):
    """The weather at a place."""

    place: str = Field(description="a town")


def wave() -> str:
    """Wave a hand."""
    return "o/"


CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "red gate"}}\n</tool_call>'
EXPECTED = [("search", {"query": "red gate"})]
MISTRAL = "{{ bos_token }}{% if tools %}{{ tools | tojson }}[TOOL_CALLS]{% endif %}{{ messages[-1].content }}"


@pytest.fixture
def llm(tool_lm) -> ChatRagBias:
    return ChatRagBias(lm=RecordingLM(tool_lm), max_tokens=120)


@pytest.fixture
def prompts(llm) -> list[str]:
    """Record the prompts that reach the model."""
    return llm.lm.prompts


def named(calls):
    return [(call["name"], call["args"]) for call in calls]


def test_tools_of_every_kind_are_in_the_prompt(llm, prompts):
    schema = {
        "title": "Count",
        "description": "Count things.",
        "type": "object",
        "properties": {"n": {"type": "integer"}},
    }
    llm.bind_tools([search, Weather, wave, schema], max_tokens=2).invoke("hi")
    for word in ('"search"', '"Weather"', '"wave"', '"Count"', "a town", "Look something up."):
        assert word in prompts[0]


def test_a_call_comes_back_whole_from_invoke_and_batch(llm):
    bound = llm.bind_tools([search])
    with saying(llm.lm, f"Let me look.\n{CALL}", CALL + CALL):
        message = bound.invoke("hi")
        both = bound.batch(["hi", "ho"])
    assert message.content == "Let me look."
    assert named(message.tool_calls) == EXPECTED
    assert message.response_metadata["finish_reason"] == "tool_calls"
    assert [named(each.tool_calls) for each in both] == [EXPECTED * 2] * 2
    ids = {call["id"] for each in both for call in each.tool_calls}
    assert len(ids) == 4
    assert all(len(id) == 9 for id in ids)


async def test_a_call_is_streamed_whole_at_the_end(llm):
    bound = llm.bind_tools([search])
    with saying(llm.lm, *[f"Let me look.\n{CALL}"] * 2):
        streams = [list(bound.stream("hi")), [chunk async for chunk in bound.astream("hi")]]
    for chunks in streams:
        assert "".join(chunk.content for chunk in chunks) == "Let me look."
        assert [len(chunk.tool_call_chunks) for chunk in chunks if chunk.tool_call_chunks] == [1]
        assert len(chunks) > 2
        whole = sum(chunks[1:], chunks[0])
        assert named(whole.tool_calls) == EXPECTED
        assert whole.invalid_tool_calls == []
        assert whole.usage_metadata["output_tokens"] > 5


BROKEN = [
    '<tool_call>{"name": "search", "arguments": {"query": }}</tool_call>',
    '<tool_call>{"name": "search", "arguments": {"query": "red ga',
    "<tool_call>search</tool_call>",
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_call_is_an_invalid_one(llm, text):
    bound = llm.bind_tools([search])
    with saying(llm.lm, text, text):
        message = bound.invoke("hi")
        chunks = list(bound.stream("hi"))
    whole = sum(chunks[1:], chunks[0])
    for answer in (message, whole):
        assert answer.content == ""
        assert answer.tool_calls == []
        assert len(answer.invalid_tool_calls) == 1
    assert "not valid JSON" in message.invalid_tool_calls[0]["error"]
    assert json.loads(whole.invalid_tool_calls[0]["args"]) == message.invalid_tool_calls[0]["args"]


def test_answers_without_a_call_are_plain_text(llm):
    bound = llm.bind_tools([search])
    with saying(llm.lm, "The gate is red. ", "The gate is red. ", CALL):
        assert bound.invoke("hi").content == "The gate is red. "
        assert "".join(chunk.content for chunk in bound.stream("hi")) == "The gate is red. "
        message = llm.invoke("hi")  # no tools were offered, so this is text
    assert (message.content, message.tool_calls) == (CALL, [])


def test_a_choice_makes_the_answer_begin_as_a_call(llm, prompts):
    for choice in ("search", {"type": "function", "function": {"name": "search"}}):
        llm.bind_tools([search, wave], tool_choice=choice, max_tokens=1).invoke("hi")
        assert prompts[-1].endswith('<tool_call>\n{"name": "search", "arguments":')
    for choice in ("any", "required", True):
        llm.bind_tools([search, wave], tool_choice=choice, max_tokens=1).invoke("hi")
        assert prompts[-1].endswith('<tool_call>\n{"name": "')
        llm.bind_tools([wave], tool_choice=choice, max_tokens=1).invoke("hi")
        assert prompts[-1].endswith('<tool_call>\n{"name": "wave", "arguments":')
    llm.bind_tools([search], tool_choice="auto", max_tokens=1).invoke("hi")
    assert prompts[-1].endswith("<|assistant|>\n")
    llm.bind_tools([search], tool_choice="none", max_tokens=1).invoke("hi")
    assert "search" not in prompts[-1]


def test_what_a_choice_began_belongs_to_the_call(llm):
    bound = llm.bind_tools([search], tool_choice="search")
    rest = ' {"query": "red gate"}}\n</tool_call>'
    with saying(llm.lm, rest, rest):
        assert named(bound.invoke("hi").tool_calls) == EXPECTED
        chunks = list(bound.stream("hi"))
    assert named(sum(chunks[1:], chunks[0]).tool_calls) == EXPECTED
    assert {chunk.content for chunk in chunks} == {""}


def test_a_choice_that_names_no_tool_is_refused(llm):
    with pytest.raises(ArgumentError, match=r"tool_choice='serch'.*'search'"):
        llm.bind_tools([search], tool_choice="serch")
    with pytest.raises(ArgumentError, match="needs tools"):
        llm.invoke("hi", tool_choice="any")


def test_templates_that_show_no_tools_are_refused(chat, lm, completion):
    with pytest.raises(NotImplementedError, match="cannot render tools: it ignores them"):
        chat.bind_tools([search])
    with pytest.raises(NotImplementedError, match="cannot render tools"):
        chat.invoke("hi", tools=[search])
    refusing = "{% if tools %}{{ raise_exception('no tools, please') }}{% endif %}{{ bos_token }}"
    with pytest.raises(NotImplementedError, match="no tools, please"):
        ChatRagBias(lm=with_template(lm, refusing)).bind_tools([search])
    with pytest.raises(ArgumentError, match="unknown argument 'tools'"):
        completion.invoke("hi", tools=[search])


def test_a_format_that_is_not_known_cannot_be_forced(lm):
    unknown = with_template(lm, "{{ bos_token }}{{ tools | tojson }}{{ messages[-1].content }}")
    llm = ChatRagBias(lm=unknown, max_tokens=2)
    llm.bind_tools([search]).invoke("hi")
    with pytest.raises(NotImplementedError, match="cannot be forced"):
        llm.bind_tools([search], tool_choice="any")


def test_markers_that_are_special_tokens_are_read(lm):
    tokenizer = copy.deepcopy(lm.tokenizer)
    tokenizer.chat_template = MISTRAL
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
    marker = tokenizer.convert_tokens_to_ids("[TOOL_CALLS]")
    model = copy.deepcopy(lm.model)
    model.resize_token_embeddings(len(tokenizer))
    llm = ChatRagBias(lm=DebiasedLM(model, tokenizer), max_tokens=120)
    bound = llm.bind_tools([search])
    answer = '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "red gate"}}]'
    assert marker in tokenizer(answer)["input_ids"]
    with saying(llm.lm, *[answer] * 3):
        assert named(bound.invoke("hi").tool_calls) == EXPECTED
        chunks = list(bound.stream("hi"))
        assert named(sum(chunks[1:], chunks[0]).tool_calls) == EXPECTED
        assert "[TOOL_CALLS]" not in llm.invoke("hi").content


def test_calls_and_their_results_go_back_to_the_model(llm, prompts):
    documents = [Document("The Heron Bridge is green."), Document("The Otter Library lends books.")]
    conversation = [
        HumanMessage("Which bridge is green?"),
        AIMessage("", tool_calls=[{"name": "search", "args": {"query": "red gate"}, "id": "123456789"}]),
        ToolMessage("\n\n".join(d.page_content for d in documents), artifact=documents, tool_call_id="123456789"),
    ]
    message = llm.bind_tools([search], max_tokens=4).invoke(conversation)
    assert '{"name": "search", "arguments": {"query": "red gate"}}' in prompts[0].replace("'", '"')
    report = message.response_metadata["ragbias"]
    assert (report["method_ran"], report["source"], report["n_found"]) == ("pine", "artifact", 2)


def test_a_cache_does_not_mix_tools(tool_lm):
    cache = InMemoryCache()
    llm = ChatRagBias(lm=tool_lm, max_tokens=2, cache=cache)
    for runnable in (llm, llm.bind_tools([search]), llm.bind_tools([wave]), llm.bind_tools([wave], tool_choice="any")):
        runnable.invoke("hi")
        runnable.invoke("hi")
    assert len(cache._cache) == 4


# structured output


class Bridge(BaseModel):
    """A bridge."""

    name: str
    green: bool


JSON = '"name": "Heron", "green": true}'
SCHEMAS = [Bridge, Bridge.model_json_schema()]


@pytest.mark.parametrize("schema", SCHEMAS, ids=["pydantic", "json"])
@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_structured_output_is_an_object_of_the_schema(llm, prompts, schema, method):
    structured = llm.with_structured_output(schema, method=method)
    rest = f" {{{JSON}}}</tool_call>" if method == "function_calling" else JSON
    with saying(llm.lm, rest, rest):
        result = structured.invoke("Which bridge?")
        pieces = list(structured.stream("Which bridge?"))
    expected = {"name": "Heron", "green": True}
    assert result == (Bridge(**expected) if schema is Bridge else expected)
    assert pieces[-1] == result
    assert ("green" in prompts[0]) == (method != "json_mode")
    assert prompts[0].endswith('"arguments":' if method == "function_calling" else "{")


def test_typed_dicts_are_schemas_too(llm):
    from typing_extensions import TypedDict

    class Named(TypedDict):
        """Something with a name."""

        name: str

    for method, rest in (("function_calling", ' {"name": "x"}}</tool_call>'), ("json_schema", '"name": "x"}')):
        with saying(llm.lm, rest):
            assert llm.with_structured_output(Named, method=method).invoke("hi") == {"name": "x"}


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_the_raw_message_and_the_error_come_along_if_wanted(llm, method):
    structured = llm.with_structured_output(Bridge, method=method, include_raw=True)
    good = f" {{{JSON}}}</tool_call>" if method == "function_calling" else JSON
    bad = good.replace("true", '"purple"')
    with saying(llm.lm, good, bad):
        result, failed = structured.invoke("hi"), structured.invoke("hi")
    assert result["parsed"] == Bridge(name="Heron", green=True)
    assert result["parsing_error"] is None
    assert isinstance(result["raw"], AIMessage)
    assert failed["parsed"] is None
    assert "green" in str(failed["parsing_error"])


def test_methods_that_cannot_work_are_refused(chat, llm):
    with pytest.raises(NotImplementedError, match="cannot render tools"):
        chat.with_structured_output(Bridge)
    with pytest.raises(ArgumentError, match="yaml"):
        llm.with_structured_output(Bridge, method="yaml")
    with pytest.raises(ArgumentError, match="response_format"):
        llm.invoke("hi", response_format="json")
    with pytest.raises(ArgumentError, match="exclude each other"):
        llm.bind_tools([search]).invoke("hi", response_format={"type": "json_object"})
    assert chat.with_structured_output(Bridge, method="json_schema") is not None
    for wrong in (5, None, int, {"a": 1}):
        with pytest.raises(WrongTypeError, match=f"schema={wrong!r} .*; expected a pydantic class, a TypedDict, or"):
            chat.with_structured_output(wrong, method="json_schema")
