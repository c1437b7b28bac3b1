"""``ragbias proxy`` with rotor, whose documents the proxy computes into the connector's folder."""

import itertools

import httpx
import pytest
from serving.conftest import CHAT, chat, own, streamed_text

from ragbias import DocumentCache
from ragbias.errors import ArgumentError, MethodError
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ProxySettings, UpstreamModel
from support.live_server import events, listening_app

pytest.importorskip("ragbias_vllm")

from ragbias_vllm.proxy import create_vllm_proxy
from support.vllm_server import in_front_of

ORDERS = list(itertools.permutations(range(3)))


def test_the_proxy_computes_the_documents_of_rotor(vllm, tiny, tmp_path):
    server, folder = vllm[0], tmp_path / "documents"
    server.folder, expected, counts = folder, own(tiny, method="rotor"), []
    with in_front_of(vllm[1], "rotor", cache=folder) as address:
        for order in ORDERS:
            answer = httpx.post(f"{address}{CHAT}", json=chat(order), timeout=30).json()
            assert answer["choices"][0]["message"]["content"] == expected.text
            assert answer["ragbias"]["method_ran"] == "rotor" and answer["ragbias"]["backend"] == "vllm"
            counts.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        pcw = httpx.post(f"{address}{CHAT}", json=chat(ragbias={"method": "pcw"}), timeout=30).json()
        streamed = httpx.post(f"{address}{CHAT}", json=chat((2, 1, 0), stream=True), timeout=30)
    lengths = server.sent(store=False)[0]["kv_transfer_params"]["ragbias"]["lengths"]
    assert counts == [0] + [sum(lengths)] * 5 and streamed_text(streamed) == expected.text
    assert DocumentCache(memory=None, folder=folder).stats().disk_entries == len(lengths)
    assert pcw["choices"][0]["message"]["content"] == own(tiny).text and len(server.sent(store=True)) == 3


def test_documents_of_rotor_depend_on_each_other_and_the_tenant(vllm, tmp_path):
    vllm[0].folder = tmp_path
    with in_front_of(vllm[1], "rotor", cache=tmp_path) as address, httpx.Client(base_url=address, timeout=30) as client:
        cached = [
            client.post(CHAT, json=body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            for body in (chat(), chat((0, 1)), chat((1, 0)), chat(prompt_cache_key="other"))
        ]
    prefix, *documents = vllm[0].sent(store=False)[-2]["kv_transfer_params"]["ragbias"]["lengths"]
    assert cached == [0, prefix, prefix + sum(documents), 0]


def test_rotor_needs_the_folder_of_the_connector(vllm, proxy, tmp_path):
    answer = proxy.post(CHAT, json=chat(ragbias={"method": "rotor"}))
    assert answer.status_code == 400 and "start the proxy with --cache" in answer.json()["error"]["message"]
    with pytest.raises(MethodError, match="rotor: vLLM cannot compute its documents; start the proxy with --cache"):
        create_vllm_proxy(UpstreamModel(vllm[1], "rotor"), ProxySettings(), Metrics())
    vllm[0].folder = tmp_path / "other"
    with in_front_of(vllm[1], "rotor", cache=tmp_path / "documents") as address:
        failed = httpx.post(f"{address}{CHAT}", json=chat(), timeout=30)
    assert failed.status_code == 502 and 'the connector has "portable": true' in failed.json()["error"]["message"]


def test_a_stream_of_rotor_without_the_connector_sends_no_text(vllm, tmp_path):
    vllm[0].folder, vllm[0].connector = tmp_path, False
    with in_front_of(vllm[1], "rotor", cache=tmp_path) as address:
        failed = httpx.post(f"{address}{CHAT}", json=chat(stream=True), timeout=30)
    *sent, error = events(failed)
    assert error["error"]["code"] == "no_connector"
    assert not any(event["choices"][0]["delta"].get("content") for event in sent)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": True}, "for rotor, give the folder of vLLM's connector and its maximum size"),
        ({"cache_disk": "1GB"}, "for rotor, give the folder"),
        ({"dtype": "float32"}, "for rotor, give the folder"),
        ({"cache": True, "cache_disk": "much"}, "expected a number of bytes"),
        ({"cache": True, "cache_disk": "1GB", "dtype": "float3"}, "dtype='float3'; expected"),
    ],
)
def test_wrong_options_for_rotor_are_refused_at_the_start(tmp_path, options, message):
    options = options | ({"cache": tmp_path} if "cache" in options else {})
    with pytest.raises(ArgumentError, match=message):
        create_vllm_proxy(UpstreamModel("http://127.0.0.1:9", "pcw", **options), ProxySettings(), Metrics())


def test_a_folder_that_is_too_small_for_rotor_is_an_error(vllm, tmp_path):
    vllm[0].folder = tmp_path
    chosen = UpstreamModel(vllm[1], "rotor", cache=tmp_path, cache_disk="10kB")
    app, load = create_vllm_proxy(chosen, ProxySettings(), Metrics())
    load()
    with listening_app(app) as address:
        failed = httpx.post(f"{address}{CHAT}", json=chat(), timeout=30)
    error = failed.json()["error"]
    assert failed.status_code == 503 and error["code"] == "store_unavailable" and "--cache-disk" in error["message"]
