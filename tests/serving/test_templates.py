"""Features that depend on the chat template: documents, tools and JSON output."""

import json

import httpx
import pytest
from langchain_core.messages import HumanMessage
from serving.conftest import CHAT, DOCUMENTS, QUESTION

from langchain_ragbias import ChatRagBias
from ragbias.boundaries.sources import KnownText
from ragbias.frameworks import AnswerFormat
from ragbias.frameworks.chat_documents import join_parts
from ragbias.serving.prompts import render_chat, template_messages
from ragbias.serving.schemas import ChatRequest
from ragbias.serving.settings import ServerSettings
from support.live_server import events, serving
from support.scripted import TOOL_TEMPLATE, RecordingLM, saying, with_template

TALK = [{"role": "user", "content": QUESTION}]
WITH_DOCUMENTS = (
    "{{ bos_token }}{% for d in documents or [] %}<doc>{{ d.title }}: {{ d.text }}</doc>\n{% endfor %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ mood }}"
)
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "red gate"}}\n</tool_call>'


def templated_text(messages: list[dict], tools: object = (), **_: object) -> str:
    return "".join(f"[{each['role']}] {each['content']}\n" for each in messages)


def post(address: str, **body: object) -> httpx.Response:
    return httpx.post(f"{address}{CHAT}", json={"model": "m", "messages": TALK, "max_tokens": 40, **body})


def test_a_template_that_knows_documents_renders_them(small_lm):
    lm = with_template(small_lm, WITH_DOCUMENTS)
    documents = [{"title": title, "text": text} for title, text in zip(["Owls", "Whales"], DOCUMENTS, strict=False)]
    with serving({"m": lm}) as address:
        answer = post(address, documents=documents, max_tokens=4).json()
        moody = post(address, documents=documents, max_tokens=4, chat_template_kwargs={"mood": "merry"}).json()
    text = lm.chat_text(TALK, documents=documents)
    assert "<doc>Owls: " in text
    known = [KnownText.of(each["text"], {"title": each["title"]}) for each in documents]
    own = lm.generate(text, documents=known, max_new_tokens=4)
    assert answer["choices"][0]["message"]["content"] == own.text
    assert answer["ragbias"]["n_found"] == 2 and answer["ragbias"]["spans"] == own.report.as_dict()["spans"]
    assert moody["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]


def parts_of(kind: str) -> list[dict]:
    content = {
        "text-plain": lambda text: {"text": text},
        "search_result": lambda text: {"source": "x.org", "content": [{"type": "text", "text": text}]},
        "document": lambda text: {"source": {"type": "text", "media_type": "text/plain", "data": text}},
    }[kind]
    return [{"type": kind, "title": text[:8], **content(text)} for text in DOCUMENTS]


@pytest.mark.parametrize("kind", ["text-plain", "search_result", "document"])
@pytest.mark.parametrize("template", ["", WITH_DOCUMENTS], ids=["inserted", "rendered"])
def test_documents_in_parts_of_messages_are_found(small_lm, kind, template):
    lm = with_template(small_lm, template or TOOL_TEMPLATE)
    fields = [{"title": text[:8], "text": text} for text in DOCUMENTS]
    question = {"type": "text", "text": QUESTION}
    with serving({"m": lm}) as address:
        expected = post(address, documents=fields, logprobs=True).json()
        answers = []
        for parts in (parts_of(kind), parts_of(kind)[::-1]):
            talk = [{"role": "user", "content": [*parts, question]}]
            answers.append(post(address, messages=talk, logprobs=True).json())
        assert answers[0]["ragbias"] == expected["ragbias"] and expected["ragbias"]["n_found"] == len(DOCUMENTS)
        assert answers[0]["choices"] == expected["choices"] == answers[1]["choices"]


def test_documents_of_tool_and_earlier_messages_stay_there():
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    talk = [
        {"role": "user", "content": parts_of("document")},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": parts_of("search_result")},
    ]
    body = ChatRequest.model_validate({"model": "m", "messages": talk})
    messages = template_messages(body)
    texts = "".join(f"{text[:8]}\n{text}\n\n" for text in DOCUMENTS)
    assert [each["content"] for each in join_parts(messages)] == [texts, "", texts]
    text, found = render_chat(templated_text, messages, None, AnswerFormat(), ServerSettings())
    begin, end = text.index("[tool]"), len(text)
    assert found.n_found == len(DOCUMENTS) and all(begin < each[0] and each[1] <= end for each in found.spans)


FIRST, SECOND = parts_of("search_result")[:2]
TEXT = {"type": "text", "text": "Of owls:"}
MIXTURES = {
    "between": [TEXT, FIRST, {"type": "text", "text": "Of whales:"}, SECOND, {"type": "text", "text": QUESTION}],
    "before": [TEXT, TEXT, FIRST, SECOND, {"type": "text", "text": QUESTION}],
    "after": [FIRST, SECOND, {"type": "text", "text": "\nAnswer: "}, {"type": "text", "text": QUESTION}],
    "around": [{"type": "text", "text": "First:\n"}, FIRST, {"type": "text", "text": " "}, SECOND, TEXT],
    "alone": [FIRST, SECOND],
}


@pytest.mark.parametrize("template", [TOOL_TEMPLATE, WITH_DOCUMENTS], ids=["inserted", "rendered"])
@pytest.mark.parametrize("parts", MIXTURES.values(), ids=MIXTURES)
@pytest.mark.parametrize("earlier", [[], [FIRST]], ids=["one message", "two messages"])
def test_langchain_and_the_server_build_the_same_prompt(small_lm, template, parts, earlier):
    lm = RecordingLM(with_template(small_lm, template))
    talk = [*([{"role": "user", "content": earlier}] if earlier else []), {"role": "user", "content": parts}]
    ChatRagBias(lm=lm, max_tokens=1).invoke([HumanMessage(message["content"]) for message in talk])
    with serving({"m": lm}) as address:
        assert post(address, messages=talk, max_tokens=1).status_code == 200
    assert lm.prompts[0] == lm.prompts[1]
    assert [boundaries.n_found for _, boundaries in lm.seen] == [2, 2]
    assert lm.seen[0][1].spans == lm.seen[1][1].spans
    texts = "".join(part["text"] for part in parts if part["type"] == "text")
    assert template is TOOL_TEMPLATE or texts in lm.prompts[1]


def test_parts_that_are_no_text_are_refused(small_lm):
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    broken = [
        {"type": "search_result", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": {}}]},
        {"type": "text-plain", "text": "x", "context": "y"},
        {"type": "document", "source": {"type": "text", "data": ""}},
        {"type": "image_url", "image_url": "x"},
        {"type": "text", "text": "x", "context": "y"},
    ]
    with serving({"m": small_lm}) as address:
        for part in (pdf, *broken):
            response = post(address, messages=[{"role": "user", "content": [TEXT, part]}])
            error = response.json()["error"]
            assert response.status_code == 400 and error["param"] == "messages[0].content"
            assert error["message"].startswith(f"messages[0].content: content[1]: a part of type '{part['type']}'")
            assert "; expected text only: {" in error["message"]


@pytest.fixture
def tool_address(small_lm):
    lm = with_template(small_lm, TOOL_TEMPLATE)
    with saying(lm, CALL, CALL), serving({"m": lm}) as address:
        yield address


def test_calls_of_tools_come_in_their_fields(tool_address):
    message = post(tool_address, tools=[SEARCH], max_tokens=200).json()["choices"][0]
    assert message["finish_reason"] == "tool_calls" and message["message"]["content"] is None
    (call,) = message["message"]["tool_calls"]
    assert call["type"] == "function" and call["function"]["name"] == "search"
    assert call["id"].isalnum() and len(call["id"]) == 9  # Mistral's templates reject other ids in the next request
    assert json.loads(call["function"]["arguments"]) == {"query": "red gate"}


def test_calls_of_tools_come_in_streams_too(tool_address):
    chunks = events(post(tool_address, tools=[SEARCH], max_tokens=200, stream=True))
    calls = [call for each in chunks for call in each["choices"][0]["delta"].get("tool_calls", ())]
    assert [each["function"]["name"] for each in calls] == ["search"] and calls[0]["index"] == 0
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert not any(each["choices"][0]["delta"].get("content") for each in chunks)


def test_an_unread_answer_holds_the_call_as_it_was_written(tool_address):
    raw = post(tool_address, tools=[SEARCH], max_tokens=200, ragbias={"raw": True}).json()["choices"][0]["message"]
    assert raw["content"] == CALL and "tool_calls" not in raw


def test_without_tools_what_looks_like_a_call_is_text(tool_address):
    for offered in ({}, {"tools": [SEARCH], "tool_choice": "none"}):
        message = post(tool_address, max_tokens=200, **offered).json()["choices"][0]["message"]
        assert "tool_calls" not in message and "search" in message["content"]


def test_calls_and_results_go_through_the_template(tool_address):
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"query": "gate"}'}}
    talk = [
        *TALK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "It is red."},
    ]
    assert post(tool_address, messages=talk, tools=[SEARCH]).status_code == 200


def test_json_is_prompted_and_begun(small_lm):
    lm = with_template(small_lm, TOOL_TEMPLATE)
    with saying(lm, '"owl": 1}'), serving({"m": lm}) as address:
        fields = {
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        }
        assert json.loads(post(address, **fields).json()["choices"][0]["message"]["content"]) == {"owl": 1}
        both = post(address, tools=[SEARCH], **fields)
    assert both.status_code == 400 and both.json()["error"]["param"] == "response_format"


def test_a_template_that_refuses_is_the_clients_concern(small_lm):
    refusing = "{{ raise_exception('roles must alternate') }}"
    with serving({"m": with_template(small_lm, refusing)}) as address:
        response = post(address)
    assert response.status_code == 400 and "roles must alternate" in response.json()["error"]["message"]
