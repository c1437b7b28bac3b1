"""Bad requests: OpenAI's error format, the right status, the field's name. The server stays up."""

import json
from typing import Any

import pytest
from serving.conftest import CHAT, DOCUMENTS, QUESTION

from ragbias import methods
from ragbias.methods import NoMethod
from ragbias.serving.prompts import client_method

TALK = [{"role": "user", "content": QUESTION}]


def body(**changes: Any) -> dict[str, Any]:
    given = {"model": "tiny", "messages": TALK, "max_tokens": 2, **changes}
    return {name: value for name, value in given.items() if value is not ...}


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value}
    return value


def tool(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": function}]


FIELDS: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "no model": (body(model=...), 400, "model"),
    "unknown model": (body(model="gpt-5"), 404, "model"),
    "no messages": (body(messages=...), 400, "messages"),
    "empty messages": (body(messages=[]), 400, "messages"),
    "messages of the wrong type": (body(messages="hello"), 400, "messages"),
    "wrong role": (body(messages=[{"role": "wizard", "content": "x"}]), 400, "messages[0].role"),
    "a number as content": (body(messages=[{"role": "user", "content": 5}]), 400, "messages[0].content"),
    "no part": (body(messages=[{"role": "user", "content": []}]), 400, "messages[0].content"),
    "an image": (body(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "messages[0].content"),
    "unknown field": (body(best_effort=True), 400, "best_effort"),
    "unknown field in a message": (body(messages=[{**TALK[0], "colour": 1}]), 400, "messages[0].colour"),
    "negative tokens": (body(max_tokens=-5), 400, "max_tokens"),
    "tokens as text": (body(max_tokens="5"), 400, "max_tokens"),
    "negative temperature": (body(temperature=-1), 400, "temperature"),
    "top_p beyond one": (body(top_p=1.5), 400, "top_p"),
    "a penalty that overflows the logits": (body(repetition_penalty=1e-38), 400, "repetition_penalty"),
    "seed of 100 digits": (body(seed=10**100), 400, "seed"),
    "two answers": (body(n=2), 400, "n"),
    "penalties": (body(presence_penalty=0.5), 400, "presence_penalty"),
    "alternatives": (body(logprobs=True, top_logprobs=3), 400, "top_logprobs"),
    "empty stop": (body(stop=[""]), 400, "stop"),
    "stop of numbers": (body(stop=[1]), 400, "stop"),
    "unknown method": (body(ragbias={"method": "pin"}), 400, "ragbias.method"),
    "a method's wrong parameter": (body(ragbias={"method": "ape(scale=-3)"}), 400, "ragbias.method"),
    "a method that reads a file": (
        body(ragbias={"method": "channel-scaling(profile=/etc/passwd)"}),
        400,
        "ragbias.method",
    ),
    "unknown option": (body(ragbias={"metod": "pine"}), 400, "ragbias.metod"),
    "on_missing": (body(ragbias={"on_missing": "shout"}), 400, "ragbias.on_missing"),
    "too many documents": (body(documents=["x"] * 51), 400, "documents"),
    "too many documents in a message": (
        body(messages=[{"role": "user", "content": "".join(f"<doc>text {at}</doc>\n" for at in range(51)) + "Who?"}]),
        400,
        "documents",
    ),
    "an empty document": (body(documents=["a", " "]), 400, "documents[1].text"),
    "a document without text": (body(documents=["a", {"title": "t"}]), 400, "documents[1].text"),
    "data without text": (body(documents=[{"id": "1", "data": {"colour": "red"}}]), 400, "documents[0]"),
    "a number as document": (body(documents=[5]), 400, "documents[0]"),
    "documents twice": (body(documents=["a"], chat_template_kwargs={"documents": ["a"]}), 400, "documents"),
    "no message for documents": (
        body(messages=[{"role": "system", "content": "Hi."}], documents=DOCUMENTS),
        400,
        "documents",
    ),
    "documents required": (body(ragbias={"on_missing": "raise"}), 400, "documents"),
    "tools that are none": (body(tools=[{"type": "web_search"}]), 400, "tools"),
    "tools that cannot be shown": (body(tools=tool(name="f", parameters={})), 400, "tools"),
    "deeply nested tools": (body(tools=tool(name="f", parameters=deep(150))), 400, "tools"),
    "a choice without tools": (body(tool_choice="required"), 400, "tool_choice"),
    "an unknown response format": (body(response_format={"type": "xml"}), 400, "response_format"),
    "broken arguments of a call": (
        body(
            messages=[
                *TALK,
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}],
                },
            ]
        ),
        400,
        "messages[1].tool_calls[0].function.arguments",
    ),
    "settled variables": (body(chat_template_kwargs={"tokenize": True}), 400, "chat_template_kwargs.tokenize"),
    "a prompt beyond the window": (body(messages=[{"role": "user", "content": "owl " * 20_000}]), 400, "messages"),
}


def check(response: Any, status: int, param: str | None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["param"] == param, error
    return error


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_field_is_named(http, name):
    given, status, param = FIELDS[name]
    check(http.post(CHAT, json=given), status, param)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_tokens": "secret"}, "max_tokens: Input should be a valid integer, not a string"),
        ({"messages": "secret"}, "messages: Input should be a valid list, not a string"),
        (
            {"messages": [["secret"]]},
            "messages[0]: Input should be a valid dictionary or object to extract fields from, not an array",
        ),
        ({"messages": [{"role": "user", "content": True}]}, "or a list of at least one part, not a boolean"),
        ({"messages": [{"role": "user", "content": []}]}, "or a list of at least one part, not an empty array"),
        ({"documents": [7.25]}, '{"id", "data": ...}, not a number'),
        ({"documents": {"secret": 1}}, "documents: Input should be a valid list, not an object"),
    ],
)
def test_a_wrong_type_is_named_without_the_value(http, changes, words):
    message = http.post(CHAT, json=body(**changes)).json()["error"]["message"]
    assert words in message and "secret" not in message


FILES = [
    "profile=a.json", "profile='a'", " profile = a", "channel=/etc/passwd", "channel='..'", "last=~",
    "a=1,\n profile=a",
]  # fmt: skip


@pytest.mark.parametrize("parameter", FILES)
@pytest.mark.parametrize("name", ["channel-scaling", "siw+channel-scaling", "pine(a=1)+channel-scaling"])
def test_no_method_of_a_request_names_a_file(http, name, parameter):
    error = check(http.post(CHAT, json=body(ragbias={"method": f"{name}({parameter})"})), 400, "ragbias.method")
    assert "cannot name a file" in error["message"]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("pine(reader=smollm2-pcw)", "reader 'smollm2-pcw' was trained for pcw, but the method is pine; use"),
        ("pcw(reader=smollm2-pcw)", "reader 'smollm2-pcw' was trained for smollm2, but this model is tiny: its"),
    ],
)
def test_a_reader_of_another_method_or_model_is_refused(http, method, words):
    changes = {"ragbias": {"method": method}, "documents": DOCUMENTS}
    error = check(http.post(CHAT, json=body(**changes)), 400, "ragbias.method")
    assert error["code"] == "invalid_method" and error["message"].startswith(words)


@pytest.mark.parametrize(
    "typed",
    ["pine", "ape(scale=0.5)", "ape( scale=.5 )", "position-interpolation(ratio=[1.0, 1.5, 1, 2])", "siw+self-extend"],
)
def test_methods_with_numbers_are_accepted(typed):
    assert client_method(typed, NoMethod()) == methods.get(typed)


BODIES = {
    "malformed": b'{"model": "tiny", ',
    "empty": b"",
    "UTF-16": json.dumps(body()).encode("utf-16"),
    "half a surrogate pair": json.dumps(body(model="\ud800")).encode(),
    "a list": b"[1, 2]",
    "a string": b'"hello"',
    "half a character": b'{"model": "\xff\xfe"}',
    "thousands of brackets": b"[" * 100_000,
    "a number of 5,000 digits": b'{"model": "tiny", "messages": [], "max_tokens": ' + b"9" * 5_000 + b"}",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_request_is_a_400(http, name):
    response = http.post(CHAT, content=BODIES[name], headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("where", ["messages", "documents", "tools", "stop", "model"])
def test_half_a_surrogate_pair_is_a_400(http, where):
    broken = {
        "messages": [{"role": "user", "content": "\ud800"}],
        "documents": ["\udfff"],
        "tools": tool(name="f", description="\ud800"),
        "stop": "\ud800",
        "model": "\ud800",
    }[where]
    text = json.dumps(body(**{where: broken}))
    response = http.post(CHAT, content=text, headers={"content-type": "application/json"})
    assert response.status_code in (400, 404)


def test_unicode_comes_back(http):
    talk = [{"role": "user", "content": "Was ist das Maskottchen? 🦉 \u0000 \u200b الطاحونة"}]
    response = http.post(CHAT, json=body(messages=talk, documents=["🦉 " * 3, "الطاحونة" * 3]))
    assert response.status_code == 200 and response.json()["ragbias"]["n_found"] == 2


def test_a_large_body_is_a_413_with_or_without_its_length(http):
    large = json.dumps(body(messages=[{"role": "user", "content": "x" * 10_000_000}])).encode()
    head = {"content-type": "application/json"}
    declared = check(http.post(CHAT, content=large, headers=head), 413, None)
    assert declared["message"] == f"the body has {len(large)} bytes; the server's --max-body-mb allows 1048576"
    pieces = (large[at : at + 65_536] for at in range(0, len(large), 65_536))
    streamed = check(http.post(CHAT, content=pieces, headers=head), 413, None)
    assert streamed["message"].startswith("the body has more than 1048576 bytes")


def test_unknown_paths_and_verbs(http):
    check(http.get("/v1/nothing"), 404, None)
    check(http.get(CHAT), 405, None)


def test_an_error_of_a_stream_comes_before_it(http):
    check(http.post(CHAT, json=body(stream=True, ragbias={"method": "pin"})), 400, "ragbias.method")


def test_completions_name_their_fields_too(http):
    given = {"model": "tiny", "prompt": QUESTION, "max_tokens": 2}
    some = http.post("/v1/completions", json={**given, "prompt": DOCUMENTS[1], "documents": DOCUMENTS})
    check(some, 400, "documents")
    assert "prompt: documents[0], documents[2] not found;" in some.json()["error"]["message"]
    check(http.post("/v1/completions", json={**given, "echo": True}), 400, "echo")
    check(http.post("/v1/completions", json={**given, "logprobs": 5}), 400, "logprobs")
    check(http.post("/v1/completions", json={**given, "prompt": ["a", "b"]}), 400, "prompt")
    check(http.post("/v1/completions", json={**given, "prompt": "owl " * 20_000}), 400, "prompt")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize"])
def test_a_text_far_beyond_the_window_is_never_tokenised(http, tiny, monkeypatch, path):
    monkeypatch.setattr(type(tiny.tokenizer), "__call__", lambda *_, **__: pytest.fail("it was tokenised"))
    text = "x" * (16 * tiny.window + 1)
    fields = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    error = check(http.post(path, json={"model": "tiny", **fields}), 400, next(iter(fields)))
    assert error["code"] == "context_length_exceeded" and "characters; expected at most" in error["message"]


def test_the_server_is_up_after_all_of_it(http):
    assert http.get("/health").json() == {"status": "ok"}
    assert http.post(CHAT, json=body(documents=DOCUMENTS)).status_code == 200
