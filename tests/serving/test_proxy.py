"""``ragbias proxy`` in front of OpenAI-compatible servers: one that echoes requests, and a real one."""

import asyncio
import json
from collections.abc import Iterator
from http.client import HTTPConnection

import httpx
import openai
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from serving.conftest import CHAT, DOCUMENTS, QUESTION

from ragbias import limits
from ragbias.errors import MethodError
from ragbias.serving import upstream as upstream_module
from ragbias.serving.proxy import create_proxy
from ragbias.serving.run import open_listener
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ProxySettings, UpstreamModel
from support.live_server import listening_app

SORTED = sorted(DOCUMENTS)


class Echo:
    """A plain server that returns the request, in one piece or as events."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.app.api_route("/v1/{path:path}", methods=["GET", "POST"])(self.answer)

    async def answer(self, path: str, request: Request) -> object:
        body = await request.body()
        self.seen.append((dict(request.headers), body))
        self.target = request.scope["path"], request.scope["query_string"]
        if path == "embeddings":
            return {"data": [1, 2]}
        if path == "fails":
            return httpx.Response  # no JSON: a 500 of the other server
        return {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "message": {}}]}

    @property
    def last(self) -> dict[str, object]:
        return json.loads(self.seen[-1][1])


@pytest.fixture(scope="module")
def echo() -> Iterator[tuple[Echo, str]]:
    server = Echo()
    with listening_app(server.app) as address:
        yield server, address


def proxied(address: str, method: str = "canonical-order", key: str = "", **settings: object):
    upstream = UpstreamModel(address, method, key=key, timeout=20)
    return listening_app(create_proxy(upstream, ProxySettings(**settings), Metrics()))


@pytest.fixture(scope="module")
def proxy(echo) -> Iterator[httpx.Client]:
    with proxied(f"{echo[1]}/v1/") as address, httpx.Client(base_url=address) as client:
        yield client


def body(texts, **more: object) -> dict[str, object]:
    talk = [{"role": "system", "content": "Notes:\n" + "\n\n".join(texts)}, {"role": "user", "content": QUESTION}]
    return {"model": "m", "messages": talk, "unknown_to_us": {"a": 1}, **more}


def test_every_order_of_the_documents_becomes_the_same_request(echo, proxy):
    sent = set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        texts = [DOCUMENTS[index] for index in order]
        response = proxy.post(CHAT, json=body(texts, documents=texts))
        report = response.json()["ragbias"]
        assert report["method_ran"] == "canonical-order" and [texts[index] for index in report["order"]] == SORTED
        assert response.headers["x-ragbias-documents"] == "3"
        sent.add(echo[0].seen[-1][1])
    assert len(sent) == 1
    assert echo[0].last == body(SORTED)


def test_documents_in_no_message_are_put_before_the_question(echo, proxy):
    talk = [{"role": "user", "content": [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {}}]}]
    proxy.post(CHAT, json={"model": "m", "messages": talk, "documents": DOCUMENTS})
    content = echo[0].last["messages"][0]["content"]
    assert (
        content[0]["text"] == "".join(f"{text}\n\n" for text in SORTED) + QUESTION
        and content[1] == talk[0]["content"][1]
    )


def test_messages_with_some_of_the_documents_are_refused(proxy):
    response = proxy.post(CHAT, json=body([*DOCUMENTS[:2], "Another."], documents=DOCUMENTS))
    assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_documents"
    assert "the messages contain some, but not documents[2]; leave all" in response.json()["error"]["message"]


def test_short_documents_are_refused_only_together(proxy):
    documents = ["4,200", "7 May", "The invoice of the mill was paid late."]
    response = proxy.post(CHAT, json=body(documents[:2], documents=documents))
    assert "the messages contain some, but not documents[2]" in response.json()["error"]["message"]
    assert proxy.post(CHAT, json=body(documents[:1], documents=documents)).status_code == 200


def test_numbered_headers_are_found_and_numbers_stay_or_go(echo, proxy):
    lines = "\n".join(f"Document [{at}](Title: {at}) {text}" for at, text in enumerate(DOCUMENTS, 1))
    numbered = [f"<documents>\n{lines}\n</documents>"]
    answer = proxy.post(CHAT, json=body(numbered)).json()["ragbias"]
    assert answer["source"] == "headers" and answer["n_found"] == 3 and answer["numbering"] == "present"
    with proxied(echo[1], strip_numbering=True) as address:
        stripped = httpx.post(f"{address}{CHAT}", json=body(numbered)).json()["ragbias"]
    assert stripped["numbering"] == "stripped" and "[1]" not in echo[0].last["messages"][0]["content"]


def test_the_other_methods_and_none(echo, proxy):
    texts = body(DOCUMENTS, documents=DOCUMENTS)
    proxy.post(CHAT, json={**texts, "ragbias": {"method": "long-context-reorder(style='haystack')"}})
    assert echo[0].last == body([DOCUMENTS[0], DOCUMENTS[2], DOCUMENTS[1]])
    assert proxy.post(CHAT, json={**texts, "ragbias": {"method": "none"}}).json()["ragbias"]["method_ran"] == "none"
    assert echo[0].last == body(DOCUMENTS)


def test_completions_are_arranged_too(echo, proxy):
    prompt = "\n".join([*DOCUMENTS, QUESTION])
    proxy.post("/v1/completions", json={"model": "m", "prompt": prompt, "documents": DOCUMENTS})
    assert echo[0].last["prompt"] == "\n".join([*SORTED, QUESTION])
    ended = f"{prompt}<|im_end|>"
    proxy.post("/v1/completions", json={"model": "m", "prompt": ended, "documents": DOCUMENTS})
    assert echo[0].last["prompt"] == "\n".join([*SORTED, QUESTION]) + "<|im_end|>"
    missing = {"model": "m", "prompt": QUESTION, "documents": DOCUMENTS, "messages": 5}
    assert proxy.post("/v1/completions", json=missing).json()["error"]["param"] == "documents"
    some = {**missing, "prompt": "\n".join([DOCUMENTS[0], DOCUMENTS[2], QUESTION])}
    assert "not documents[1]; leave all" in proxy.post("/v1/completions", json=some).json()["error"]["message"]


def test_what_is_no_completion_is_passed_on_as_it_is(echo, proxy):
    assert proxy.post("/v1/embeddings?a=b", content=b"anything", headers={"x-own": "1"}).json() == {"data": [1, 2]}
    headers, content = echo[0].seen[-1]
    assert content == b"anything" and headers["x-own"] == "1"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"ragbias": {"method": "pine"}}, "ragbias.method"),
        ({"ragbias": {"method": "icr"}}, "ragbias.method"),
        ({"ragbias": {"method": "pin"}}, "ragbias.method"),
        ({"ragbias": {"method": "channel-scaling(profile=/etc/passwd)"}}, "ragbias.method"),
        ({"ragbias": {"colour": 1}}, "ragbias.colour"),
        ({"documents": 5}, "documents"),
        ({"documents": ["x"] * 2_000}, "documents"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "system", "content": "Hi."}], "documents": DOCUMENTS}, "documents"),
        ({"ragbias": {"on_missing": "raise"}}, "documents"),
    ],
)
def test_a_wrong_field_is_named(proxy, changes, param):
    response = proxy.post(CHAT, json={**body(["None."]), **changes})
    assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text


def test_bodies_that_are_no_objects_are_refused(proxy):
    for content in (b"{", b"[]", b"[" * 100_000):
        assert proxy.post(CHAT, content=content).status_code == 400


def test_methods_inside_the_model_are_refused_at_the_start(echo):
    for method in ("pine", "attention-sorting", "permutation-vote", "pced", "mixture"):
        with pytest.raises(MethodError, match="the model runs elsewhere"):
            create_proxy(UpstreamModel(echo[1], method), ProxySettings(), Metrics())


def test_keys_are_passed_on_or_replaced(echo):
    clients = {"authorization": "Bearer clients"}
    for key, settings, expected in (
        ("", {}, "Bearer clients"),
        ("own", {}, "Bearer own"),
        ("own", {"api_key": "clients"}, "Bearer own"),
        ("", {"api_key": "clients"}, None),
    ):
        with proxied(echo[1], key=key, **settings) as address:
            assert httpx.post(f"{address}{CHAT}", json=body(DOCUMENTS), headers=clients).status_code == 200
        assert echo[0].seen[-1][0].get("authorization") == expected


def test_a_server_that_is_not_there_is_a_502():
    with proxied("http://127.0.0.1:9") as address:
        response = httpx.post(f"{address}{CHAT}", json=body(DOCUMENTS))
        assert response.status_code == 502 and response.json()["error"]["code"] == "upstream_unreachable"
        assert httpx.get(f"{address}/ready").status_code == 503 and httpx.get(f"{address}/health").status_code == 200


def test_answers_and_streams_of_a_real_server_come_through(address, tiny, conversation):
    """The model answers the arranged prompt, and the last event has the report."""
    shown = [{**conversation[0], "content": "\n\n".join(SORTED)}, conversation[1]]
    own = tiny.generate(tiny.chat_text(shown), method="none", max_new_tokens=8)
    with proxied(address) as front, openai.OpenAI(base_url=f"{front}/v1", api_key="k", max_retries=0) as client:
        given = {"model": "tiny", "messages": conversation, "max_tokens": 8, "extra_body": {"documents": DOCUMENTS}}
        response = client.chat.completions.create(**given)
        assert response.choices[0].message.content == own.text
        assert response.model_extra["ragbias"]["method_ran"] == "canonical-order"
        chunks = list(client.chat.completions.create(stream=True, **given))
        assert "".join(each.choices[0].delta.content or "" for each in chunks) == own.text
        assert chunks[-1].model_extra["ragbias"]["order"] == response.model_extra["ragbias"]["order"]
        with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
            client.chat.completions.create(**{**given, "model": "other"})


class Odd:
    """A server with answers that stretch or break HTTP and JSON."""

    def __init__(self) -> None:
        self.app, self.cookies = FastAPI(), []
        self.app.post("/v1/{path:path}")(self.answer)

    async def answer(self, request: Request) -> Response:
        self.cookies.append(request.headers.get("cookie"))
        kind = (await request.json())["kind"]
        if kind in ("dies", "lines", "endless"):
            return StreamingResponse(self.events(kind), media_type="text/event-stream")
        content = {"number": b'{"x": NaN}', "half": b'{"x": "\\ud83d"}', "packed": b"{}"}[kind]
        headers = {"set-cookie": "of=another"} | ({"content-encoding": "gzip"} if kind == "packed" else {})
        return Response(content, media_type="application/json", headers=headers)

    async def events(self, kind: str):
        if kind == "endless":
            yield b"data:"
            return
        yield 'data: {"choices": [{"delta": {"content": "a\u2028b"}, "finish_reason": "stop"}]}\n\n'.encode()
        if kind == "dies":
            await asyncio.sleep(0.05)
            raise asyncio.CancelledError  # the connection is dropped


@pytest.fixture(scope="module")
def odd() -> Iterator[tuple[Odd, httpx.Client]]:
    server = Odd()
    with listening_app(server.app) as other, proxied(other) as address, httpx.Client(base_url=address) as client:
        yield server, client


def test_what_python_reads_as_json_is_passed_on_with_the_report(odd):
    for kind in ("number", "half"):
        response = odd[1].post(CHAT, json=body(DOCUMENTS, kind=kind))
        assert response.status_code == 200 and "ragbias" in json.loads(response.content)


def test_a_line_separator_within_an_event_does_not_part_it(odd):
    response = odd[1].post(CHAT, json=body(DOCUMENTS, kind="lines")).content.decode()
    event = json.loads(response.removeprefix("data: "))
    assert event["choices"][0]["delta"]["content"] == "a\u2028b" and "ragbias" in event


def test_an_upstream_that_breaks_off_is_an_upstream_error(odd):
    events = odd[1].post(CHAT, json=body(DOCUMENTS, kind="dies")).content.decode().strip().split("\n\n")
    assert json.loads(events[-1].strip().removeprefix("data: "))["error"]["code"] == "upstream_unreachable"


def test_a_silent_upstream_is_an_error_with_the_limit():
    with open_listener("127.0.0.1", 0) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        app = create_proxy(UpstreamModel(address, "canonical-order", timeout=0.2), ProxySettings(), Metrics())
        with listening_app(app) as address:
            response = httpx.post(f"{address}{CHAT}", json=body(DOCUMENTS))
    assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")
    words = "the upstream server sent nothing for 0.2 seconds; the proxy's --timeout sets this limit"
    assert response.json()["error"]["message"] == words


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (["secret"], "the body is an array; expected an object"),
        ({"messages": "secret"}, "messages: expected a list of at least one message, not a string"),
        ({"messages": []}, "messages: expected a list of at least one message, not an empty array"),
        ({"messages": [{"role": "user", "content": "a"}, None]}, "messages[1]: expected an object, not null"),
    ],
)
def test_a_wrong_type_is_named_without_the_value(proxy, content, words):
    response = proxy.post(CHAT, json=content)
    assert (response.status_code, response.json()["error"]["message"]) == (400, words)


def test_no_client_gets_the_cookies_of_another(odd):
    for _ in range(2):
        with httpx.Client(base_url=odd[1].base_url) as client:
            client.post(CHAT, json=body(DOCUMENTS, kind="number"))
    assert set(odd[0].cookies[-2:]) == {None}


def test_a_path_that_cannot_be_passed_on_is_refused(odd):
    assert odd[1].get("/v1/models/%00").status_code == 400


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/v1/models/../../api/pull", 400),
        ("GET", "/v1/models/%2e%2e/%2e%2e/api/tags", 400),
        ("GET", "/v1/models/..%2f..%2fapi/tags", 400),
        ("GET", "/v1/models//api", 400),
        ("GET", "/v1/models/..\\api", 400),
        ("POST", "/v1/../api/pull", 404),
        ("POST", "/v1/files", 404),
        ("DELETE", "/v1/models/m", 405),
    ],
)
def test_no_client_leaves_the_allowed_routes(echo, proxy, verb, path, status):
    before = len(echo[0].seen)
    connection = HTTPConnection(proxy.base_url.host, proxy.base_url.port)  # httpx normalises paths
    connection.request(verb, path)
    assert connection.getresponse().status == status
    connection.close()
    assert len(echo[0].seen) == before


@pytest.mark.parametrize("host", ["x/admin/delete?a=", "x/../../secret", "x/internal?"])
def test_the_host_header_does_not_change_the_path(echo, proxy, host):
    connection = HTTPConnection(proxy.base_url.host, proxy.base_url.port)
    connection.request("POST", "/v1/embeddings?a=1", body=b"{}", headers={"host": host})
    connection.getresponse()
    connection.close()
    assert echo[0].target == ("/v1/embeddings", b"a=1")


def test_models_with_slashes_are_passed_on(proxy):
    assert proxy.get("/v1/models/owner/name").status_code == 200


def test_headers_of_the_connection_are_not_passed_on(echo, proxy):
    own = {"connection": "x-secret, keep-alive", "x-secret": "1", "proxy-authorization": "Basic x", "x-other": "2"}
    proxy.post("/v1/embeddings", content=b"anything", headers=own)
    headers, _ = echo[0].seen[-1]
    assert headers["x-other"] == "2" and not {"x-secret", "proxy-authorization"} & set(headers)


def test_bodies_in_utf_16_and_half_characters_are_refused(proxy):
    text = json.dumps(body(DOCUMENTS))
    for content in (text.encode("utf-16"), text.replace("Notes", "\\ud800").encode()):
        response = proxy.post(CHAT, content=content)
        assert response.status_code == 400 and "not valid JSON" in response.json()["error"]["message"]


def test_a_compressed_answer_is_refused_and_never_unpacked(odd):
    response = odd[1].post(CHAT, json=body(DOCUMENTS, kind="packed"))
    assert response.status_code == 502 and response.json()["error"]["code"] == "upstream_compressed"


def test_a_large_answer_of_the_upstream_is_an_error(odd, monkeypatch):
    monkeypatch.setattr(limits, "ANSWER_BYTES", 3)
    response = odd[1].post(CHAT, json=body(DOCUMENTS, kind="number"))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (502, "upstream_too_large")
    assert error["message"] == "an answer or event of the upstream server exceeds 3 bytes; request a shorter answer"
    monkeypatch.setattr(upstream_module, "MAX_LINE_BYTES", 3)
    response = odd[1].post(CHAT, json=body(DOCUMENTS, kind="endless"))
    assert json.loads(response.text.strip().removeprefix("data: "))["error"]["code"] == "upstream_too_large"
