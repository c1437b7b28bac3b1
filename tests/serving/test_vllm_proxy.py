"""``ragbias proxy`` for methods in vLLM, in front of a server that answers only from stored documents."""

import asyncio
import itertools
import sys
import threading

import httpx
import openai
import pytest
from llama_index.llms.ragbias import RagBiasLLM
from serving.conftest import CHAT, DOCUMENTS, QUESTION, chat, own, streamed_text

from langchain_ragbias import ChatRagBias
from ragbias.errors import ArgumentError, MethodError, ModelFileError, ServerError
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ProxySettings, UpstreamModel
from support.concurrency import wait_until
from support.live_server import events, listening_app

pytest.importorskip("ragbias_vllm")

from ragbias_vllm.proxy import create_vllm_proxy
from ragbias_vllm.proxy_upstream import ATTEMPTS
from support.vllm_server import VllmServer, in_front_of

COMPLETIONS = "/v1/completions"
ORDERS = list(itertools.permutations(range(3)))


def test_answers_equal_a_local_model_in_every_order(proxy, tiny):
    expected = own(tiny)
    for order in ORDERS:
        answer = proxy.post(CHAT, json=chat(order, logprobs=True)).json()
        choice, report = answer["choices"][0], answer["ragbias"]
        assert choice["message"]["content"] == expected.text and choice["finish_reason"] == expected.finish_reason
        assert report["method_ran"] == "pcw" and report["backend"] == "vllm" and report["n_found"] == 3
        assert answer["usage"]["completion_tokens"] == expected.usage.completion_tokens
        streamed = proxy.post(CHAT, json=chat(order, stream=True))
        assert streamed_text(streamed) == expected.text
        assert streamed.headers["x-ragbias-method"] == "pcw"
        assert events(streamed)[-1]["ragbias"]["cached_tokens"] == report["spans"][-1][1]


def test_documents_are_stored_once_whatever_the_order(vllm, proxy):
    server, counts = vllm[0], []
    for order in ORDERS:
        usage = proxy.post(CHAT, json=chat(order)).json()["usage"]
        counts.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert len(server.sent(store=True)) == 3
    answers = server.sent(store=False)
    assert len({tuple(body["prompt"]) for body in answers}) == 1
    lengths = answers[0]["kv_transfer_params"]["ragbias"]["lengths"]
    assert counts == [0] + [sum(lengths)] * 5
    for body in server.sent(store=True):
        assert len(body["prompt"]) == sum(body["kv_transfer_params"]["ragbias"]["lengths"]) + 1


def test_only_new_documents_are_stored(vllm, proxy):
    proxy.post(CHAT, json=chat((0, 1)))
    usage = proxy.post(CHAT, json=chat((2, 0, 1))).json()["usage"]
    prefix, *documents = vllm[0].sent(store=False)[-1]["kv_transfer_params"]["ragbias"]["lengths"]
    new = vllm[0].sent(store=True)[-1]["kv_transfer_params"]["ragbias"]["lengths"][1]
    assert usage["prompt_tokens_details"]["cached_tokens"] == prefix + sum(documents) - new
    with in_front_of(vllm[1]) as second:  # another proxy asks once for each document, and reports it as cached
        usage = httpx.post(f"{second}{CHAT}", json=chat((1, 2, 0))).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == prefix + sum(documents)


def test_completions_and_sampling_arguments_equal_a_local_model(proxy, tiny):
    prompt = "\n\n".join([*DOCUMENTS, QUESTION])
    body = {"model": "tiny", "prompt": prompt, "documents": DOCUMENTS, "max_tokens": 8}
    for arguments in ({}, {"temperature": 1.0, "seed": 3, "top_k": 5}, {"repetition_penalty": 1.5}, {"stop": "a"}):
        expected = tiny.generate(
            prompt, documents=DOCUMENTS, method="pcw", max_new_tokens=8, logprobs=True, **arguments
        )
        for streamed in (False, True):
            response = proxy.post(COMPLETIONS, json={**body, **arguments, "logprobs": 0, "stream": streamed})
            answers = events(response) if streamed else [response.json()]
            assert "".join(answer["choices"][0]["text"] for answer in answers) == expected.text
            logprobs = answers[-1]["choices"][0]["logprobs"]["token_logprobs"]
            assert logprobs == pytest.approx(expected.logprobs[: len(logprobs)]) and logprobs


def test_numbers_in_the_prompt_can_be_stripped(vllm):
    prompt = "\n\n".join([*(f"[{number}] {text}" for number, text in enumerate(DOCUMENTS, 1)), QUESTION])
    body = {"model": "tiny", "prompt": prompt, "documents": DOCUMENTS, "max_tokens": 2}
    with in_front_of(vllm[1], strip_numbering=True) as address:
        report = httpx.post(f"{address}{COMPLETIONS}", json=body, timeout=30).json()["ragbias"]
    assert report["numbering"] == "stripped" and report["method_ran"] == "pcw"


def test_plain_requests_need_no_connector(vllm, proxy, tiny):
    vllm[0].connector = False
    for options in ({"ragbias": {"method": "none"}}, {"ragbias": {"method": "canonical-order"}}):
        method = options["ragbias"]["method"]
        answer = proxy.post(CHAT, json=chat((2, 0, 1), **options)).json()
        assert answer["choices"][0]["message"]["content"] == own(tiny, (2, 0, 1), method).text
        assert answer["ragbias"]["method_ran"] == method and answer["ragbias"]["backend"] == ""
    single = proxy.post(CHAT, json=chat((0,))).json()
    assert single["ragbias"]["method_ran"] == "none" and "one document" in single["ragbias"]["reason"]
    assert not any("kv_transfer_params" in body for body in vllm[0].bodies)


def test_ape_without_scaling_runs_as_pcw(proxy, tiny):
    body = chat(ragbias={"method": "ape(temperature=1,scale=1)"})
    answer = proxy.post(CHAT, json=body).json()
    assert answer["ragbias"]["method_ran"] == "ape" and answer["choices"][0]["message"]["content"] == own(tiny).text


@pytest.mark.parametrize("method", ["pine", "ape", "pced", "mixture", "structured-prompting", "attention-sorting"])
def test_other_methods_are_refused_with_the_possible_ones(vllm, proxy, method):
    with pytest.raises(MethodError, match="does not run in vLLM; expected one of pcw, ape"):
        create_vllm_proxy(UpstreamModel(vllm[1], method), ProxySettings(), Metrics())
    error = proxy.post(CHAT, json=chat(ragbias={"method": method})).json()["error"]
    assert error["param"] == "ragbias.method" and "expected one of pcw" in error["message"]


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"documents": 5}, 400, "documents"),
        ({"documents": [""]}, 400, "documents[0].text"),
        ({"ragbias": {"colour": 1}}, 400, "ragbias.colour"),
        ({"max_tokens": 9}, 400, "max_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 100_000}]}, 400, "messages"),
    ],
)
def test_a_wrong_field_is_named(vllm, changes, status, param):
    with in_front_of(vllm[1], max_new_tokens=8) as address:
        response = httpx.post(f"{address}{CHAT}", json=chat(**changes))
    assert response.status_code == status and response.json()["error"]["param"] == param, response.text
    assert not vllm[0].bodies


def test_lost_documents_are_stored_again(vllm, proxy, tiny):
    for stream in (False, True):
        proxy.post(CHAT, json=chat())
        vllm[0].entries.clear()
        response = proxy.post(CHAT, json=chat(stream=stream))
        text = streamed_text(response) if stream else response.json()["choices"][0]["message"]["content"]
        assert text == own(tiny).text
    assert "ragbias_upstream_retries_total 2.0" in proxy.get("/metrics").text


def test_documents_that_are_lost_at_once_are_an_error(vllm, proxy):
    vllm[0].forgets = True
    response = proxy.post(CHAT, json=chat())
    assert response.status_code == 502 and response.json()["error"]["code"] == "upstream_failed"
    assert len(vllm[0].sent(store=False)) == ATTEMPTS
    (begin, error) = events(proxy.post(CHAT, json=chat(stream=True)))
    assert begin["choices"][0]["delta"]["role"] == "assistant" and error["error"]["code"] == "upstream_failed"


def test_a_full_store_is_an_error(vllm, proxy):
    vllm[0].full = True
    response = proxy.post(CHAT, json=chat())
    assert response.status_code == 503 and response.json()["error"]["code"] == "store_unavailable"
    assert response.headers["retry-after"] == "5" and not vllm[0].sent(store=False)


def test_a_vllm_without_the_connector_is_refused(vllm, proxy):
    vllm[0].connector = False
    error = proxy.post(CHAT, json=chat()).json()["error"]
    assert error["code"] == "no_connector" and "--kv-transfer-config" in error["message"]
    assert not vllm[0].sent(store=False)


def test_a_vllm_that_does_not_report_cached_tokens_is_refused(vllm, proxy):
    vllm[0].details = False
    error = proxy.post(CHAT, json=chat()).json()["error"]
    assert error["code"] == "no_connector" and "--enable-prompt-tokens-details" in error["message"]
    assert not vllm[0].sent(store=False)


@pytest.mark.parametrize("change", [{"connector": False}, {"computes": 1}])
def test_an_answer_without_its_stored_documents_is_an_error(vllm, proxy, change):
    proxy.post(CHAT, json=chat())
    for name, value in change.items():
        setattr(vllm[0], name, value)
    streamed = events(proxy.post(CHAT, json=chat(stream=True)))
    assert streamed[-1]["error"]["code"] == "upstream_failed"
    whole = proxy.post(CHAT, json=chat())
    assert whole.status_code == 502
    assert whole.json()["error"]["code"] == ("no_connector" if "connector" in change else "upstream_failed")


def test_streams_wait_for_each_other_and_the_queue_is_bounded(vllm):
    vllm[0].seconds = 0.1
    with in_front_of(vllm[1], max_streams=1, max_waiting=1) as address, httpx.Client(base_url=address) as client:

        def counts():
            text = client.get("/metrics").text
            return [f'ragbias_{name}_requests{{model="tiny"}} 1.0' in text for name in ("running", "waiting")]

        with client.stream("POST", CHAT, json=chat(stream=True, max_tokens=64)):
            wait_until(lambda: counts() == [True, False])
            waiting = threading.Thread(target=httpx.post, args=[f"{address}{CHAT}"], kwargs={"json": chat(stream=True)})
            waiting.start()
            wait_until(lambda: counts() == [True, True])
            refused = client.post(CHAT, json=chat())
            assert refused.status_code == 429 and refused.json()["error"]["code"] == "queue_full"
            assert len(vllm[0].sent(store=False)) == 1
        waiting.join()
    assert len(vllm[0].sent(store=False)) == 2


def test_an_upstream_that_restarts_is_checked_again(vllm, proxy):
    proxy.post(CHAT, json=chat())
    vllm[0].healthy = False
    wait_until(lambda: proxy.get("/ready").status_code == 503)
    vllm[0].healthy, vllm[0].connector = True, False
    wait_until(lambda: proxy.get("/ready").status_code == 200)
    assert proxy.post(CHAT, json=chat()).json()["error"]["code"] == "no_connector"


def test_an_upstream_that_is_gone_is_a_502(tiny):
    server = VllmServer(tiny)
    with listening_app(server.app) as upstream:
        front = in_front_of(upstream)
        address = front.__enter__()
    for stream in (False, True):
        response = httpx.post(f"{address}{COMPLETIONS}", json={"model": "tiny", "prompt": "x", "stream": stream})
        error = (events(response)[-1] if stream else response.json())["error"]
        assert error["code"] == "upstream_unreachable"
    front.__exit__(None, None, None)


def test_the_proxy_waits_for_an_upstream_that_starts_later(tiny):
    with listening_app(VllmServer(tiny).app) as upstream:
        port = int(upstream.rpartition(":")[2])
    app, load = create_vllm_proxy(UpstreamModel(upstream, "pcw"), ProxySettings(), Metrics())
    loading = threading.Thread(target=load)
    loading.start()
    with listening_app(app) as address:
        assert httpx.get(f"{address}/ready").status_code == 503
        with listening_app(VllmServer(tiny).app, port):
            loading.join(20)
            assert httpx.get(f"{address}/ready").status_code == 200
            assert httpx.post(f"{address}{CHAT}", json=chat()).status_code == 200


def test_a_stream_that_breaks_off_ends_with_an_error(vllm, proxy):
    vllm[0].breaks_off = True
    assert events(proxy.post(CHAT, json=chat(stream=True)))[-1]["error"]["code"] == "upstream_broke_off"


def test_a_client_that_leaves_aborts_the_request_upstream(vllm, proxy):
    vllm[0].seconds = 0.2
    with proxy.stream("POST", CHAT, json=chat(stream=True, max_tokens=64)) as response:
        next(line for line in response.iter_lines() if '"content": "' in line and '"content": ""' not in line)
    wait_until(lambda: vllm[0].aborted == 1)
    wait_until(lambda: 'ragbias_running_requests{model="tiny"} 0.0' in proxy.get("/metrics").text)


def test_a_client_that_leaves_during_storing_stops_no_other(vllm, proxy, tiny):
    vllm[0].store_seconds = 0.2

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=proxy.base_url, timeout=30) as client:
            request = asyncio.create_task(client.post(CHAT, json=chat()))
            while not vllm[0].sent(store=True):
                await asyncio.sleep(0.01)
            request.cancel()

    asyncio.run(leave())
    assert proxy.post(CHAT, json=chat()).json()["choices"][0]["message"]["content"] == own(tiny).text
    assert len(vllm[0].sent(store=True)) == 3


def test_tenants_share_neither_documents_nor_prefix_cache(vllm):
    tenants = [{"authorization": f"Bearer {name}"} for name in ("a", "b")]

    def cached(address: str, headers: dict[str, str], **more: object) -> int:
        answer = httpx.post(f"{address}{CHAT}", json=chat(**more), headers=headers).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with in_front_of(vllm[1], api_key="a\nb") as address:
        assert [cached(address, tenants[index]) > 0 for index in (0, 1, 0, 1)] == [False, False, True, True]
        assert cached(address, tenants[0], prompt_cache_key="x") == 0
        for index in (0, 1):
            cached(address, tenants[index], ragbias={"method": "none"})
    salts = [{body["cache_salt"] for body in vllm[0].sent(store)} for store in (True, False)]
    assert len(salts[0]) == 3 and len(salts[1]) == 5 and not salts[0] & salts[1]
    scopes = {scope for scope, _, _ in vllm[0].entries}
    assert len(scopes) == 3 and "" not in scopes
    with in_front_of(vllm[1], tenant_header="x-tenant") as address:
        assert [cached(address, {"x-tenant": name}) > 0 for name in ("m", "n", "m")] == [False, False, True]
        assert httpx.post(f"{address}{CHAT}", json=chat()).status_code == 400


def test_a_reader_answers_requests_of_its_method_only(vllm):
    with in_front_of(vllm[1], reader="tiny-reader") as address:
        answer = httpx.post(f"{address}{CHAT}", json=chat()).json()
        assert answer["ragbias"]["reader"] == "tiny-reader" and answer["model"] == "tiny"
        plain = httpx.post(f"{address}{CHAT}", json=chat(ragbias={"method": "none"})).json()
        assert plain["ragbias"]["reader"] == ""
    assert {body["model"] for body in vllm[0].sent(store=True)} == {"tiny"}
    answers = vllm[0].sent(store=False)
    assert [body["model"] for body in answers] == ["tiny-reader", "tiny"]
    assert len(vllm[0].sent(store=True)) == 3


def test_upstreams_that_cannot_serve_are_refused_at_the_start(vllm):
    for changes, error, message in (
        ({"reader": "other"}, ArgumentError, "expected an adapter of the upstream server: 'tiny-reader'"),
        ({"model": "/nowhere"}, ModelFileError, "/nowhere"),
        ({"url": "127.0.0.1"}, ArgumentError, "expected an address"),
    ):
        with pytest.raises(error, match=message):
            create_vllm_proxy(
                UpstreamModel(**{"url": vllm[1], "method": "pcw", **changes}), ProxySettings(), Metrics()
            )[1]()
    with pytest.raises(ArgumentError, match="takes no reader in vLLM"):
        create_vllm_proxy(UpstreamModel(vllm[1], "none", reader="tiny-reader"), ProxySettings(), Metrics())
    with pytest.raises(ServerError, match="does not list models"):
        create_vllm_proxy(UpstreamModel(f"{vllm[1]}/x", "pcw"), ProxySettings(), Metrics())[1]()


def test_classes_of_the_frameworks_answer_through_the_proxy(proxy, tiny):
    address, body = str(proxy.base_url), chat()
    remote = ChatRagBias(base_url=address, method="pcw", max_tokens=8)
    talk = [(message["role"], message["content"]) for message in body["messages"]]
    answer = remote.invoke(talk, documents=DOCUMENTS)
    assert answer.content == own(tiny).text and answer.response_metadata["ragbias"]["backend"] == "vllm"
    assert "".join(str(piece.content) for piece in remote.stream(talk, documents=DOCUMENTS)) == own(tiny).text
    prompt = "\n\n".join([*DOCUMENTS, QUESTION])
    llm = RagBiasLLM(base_url=address, method="pcw", max_new_tokens=8)
    expected = tiny.generate(prompt, documents=DOCUMENTS, method="pcw", max_new_tokens=8).text
    assert llm.complete(prompt, formatted=True, documents=DOCUMENTS).text == expected


def test_the_stock_client_streams_through_the_proxy(proxy, tiny):
    with openai.OpenAI(base_url=f"{proxy.base_url}/v1", api_key="k", max_retries=0) as client:
        body = chat()
        extra = {"documents": body.pop("documents")}
        options = {"include_usage": True}
        chunks = list(client.chat.completions.create(**body, extra_body=extra, stream=True, stream_options=options))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == own(tiny).text
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0
        assert [model.id for model in client.models.list()] == ["tiny"]


def test_the_command_names_the_package_that_it_needs(cli, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["ragbias.cli.serve"], "entry_points", lambda **_: ())
        code, _, stderr = cli("proxy", "--upstream", "http://127.0.0.1:9", "--method", "pcw")
    assert code == 2 and "ragbias-vllm is not installed; install it with: pip install 'ragbias-vllm[proxy]'" in stderr
    code, _, stderr = cli("proxy", "--upstream", "http://127.0.0.1:9", "--method", "pine")
    assert code == 2 and "in front of vLLM, `ragbias proxy` runs pcw" in stderr
