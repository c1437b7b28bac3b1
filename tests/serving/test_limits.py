"""API key, queue, readiness, metrics, log, and shutdown."""

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import httpx
import pytest
from serving.conftest import CHAT, DOCUMENTS, QUESTION

from ragbias.boundaries.recognisers import document_elements
from ragbias.errors import ArgumentError, ModelFileError
from ragbias.serving.engine import ServedModel
from ragbias.serving.errors import ApiError
from ragbias.serving.models import ModelSettings
from ragbias.serving.server import JsonLines, Metrics, log_to_stderr
from ragbias.serving.settings import ServerSettings
from support.concurrency import wait_until
from support.live_server import listening_app, local_app, logs_restored, serving

BODY = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4, "documents": DOCUMENTS}


def test_the_key_is_required_except_for_health_and_metrics(tiny):
    with serving({"tiny": tiny}, api_key="secret-ü") as address, httpx.Client(base_url=address) as http:
        for path in ("/health", "/ready", "/metrics"):
            assert http.get(path).status_code == 200
        for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            refused = http.post(CHAT, json=BODY, headers=header)
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        assert http.get("/v1/models").status_code == http.get("/docs").status_code == 401
        right = {"authorization": "Bearer secret-ü".encode()}
        assert http.post(CHAT, json=BODY, headers=right).status_code == 200


async def test_too_many_requests_get_a_retry_time(tiny):
    with serving({"tiny": tiny}, max_waiting=2, max_batch=1, max_streams=1) as address:
        async with httpx.AsyncClient(base_url=address, timeout=30) as http:
            responses = await asyncio.gather(*(http.post(CHAT, json={**BODY, "max_tokens": 60}) for _ in range(12)))
    statuses = {each.status_code for each in responses}
    assert statuses == {200, 429}
    assert all(int(each.headers["retry-after"]) > 0 for each in responses if each.status_code == 429)


def test_a_key_may_end_in_any_letter(tiny):
    with serving({"tiny": tiny}, api_key="voil\u00e0") as address:  # its last byte is a blank in Latin-1
        for encoding in ("utf-8", "latin-1"):
            key = "Bearer voil\u00e0".encode(encoding)
            assert httpx.get(f"{address}/v1/models", headers={"authorization": key}).is_success


def test_a_blank_key_does_not_open_the_server(tiny):
    with pytest.raises(ArgumentError, match="the API key is blank"):
        local_app({"tiny": tiny}, api_key=" \n")


def test_a_key_that_latin_1_lacks_has_one_form(tiny):
    with serving({"tiny": tiny}, api_key="\u20ac") as address:
        assert httpx.get(f"{address}/v1/models", headers={"authorization": "Bearer ?"}).status_code == 401


def test_a_long_method_is_refused_at_once(tiny):
    with serving({"tiny": tiny}) as address, httpx.Client(base_url=address, timeout=5) as http:
        body = {**BODY, "ragbias": {"method": f"pine{' ' * 40_000}x"}}
        refused = http.post(CHAT, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "ragbias.method: 40,005 characters; expected at most 1000"


def test_more_tokens_than_the_server_writes_are_refused(tiny):
    with serving({"tiny": tiny}, max_new_tokens=8) as address:
        refused = httpx.post(f"{address}{CHAT}", json={**BODY, "max_tokens": 9})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "max_tokens"
        whole = httpx.post(f"{address}{CHAT}", json={**BODY, "max_tokens": 8})
        assert whole.status_code == 200


def test_a_server_without_a_model_yet_is_alive_and_not_ready(tiny):
    app, engine, _ = local_app({"tiny": tiny})
    loaded, engine._served = engine._served, {}
    with listening_app(app) as address, httpx.Client(base_url=address) as http:
        assert http.get("/health").status_code == 200
        assert http.get("/ready").status_code == http.post(CHAT, json=BODY).status_code == 503
        engine._served = loaded
        assert http.get("/ready").status_code == 200
        app.state.draining = True
        assert http.get("/ready").status_code == 503 and http.get("/health").status_code == 200


def test_a_request_without_documents_names_the_field(tiny):
    with serving({"tiny": tiny}) as address:
        plain = httpx.post(f"{address}{CHAT}", json={**BODY, "documents": None}).json()
        outside = httpx.post(f"{address}{CHAT}", json={**BODY, "method": "pine"}).json()
        needed = {**BODY, "documents": None, "ragbias": {"on_missing": "raise"}}
        refused = httpx.post(f"{address}{CHAT}", json=needed).json()["error"]["message"]
    remedy = "send the field 'documents', or start the server with --separator or --segmenter"
    assert plain["ragbias"]["reason"].endswith(f"no documents were given; {remedy}")
    assert refused.endswith(f"; no documents were given; {remedy}. ragbias.on_missing='ignore' runs the plain model")
    assert outside["error"]["message"] == "method: unknown field; name it ragbias.method"


def test_a_separator_finds_documents_that_are_not_named(tiny):
    talk = [{"role": "user", "content": "\n###\n".join(["Notes:", *DOCUMENTS, QUESTION])}]
    with serving({"tiny": tiny}, separator="\n###\n") as address:
        answer = httpx.post(f"{address}{CHAT}", json={**BODY, "messages": talk, "documents": None}).json()
    assert answer["ragbias"]["source"] == "segmenter" and answer["ragbias"]["n_found"] == 3
    assert answer["system_fingerprint"] == "pine, 3 documents"


def test_a_segmenter_finds_documents_of_any_client(tiny):
    content = "".join(f"<doc>{text}</doc>\n" for text in DOCUMENTS) + QUESTION
    talk = [{"role": "user", "content": content}]
    with serving({"tiny": tiny}, segmenter=re.compile("(?s)<doc>.*?</doc>")) as address:
        found = httpx.post(f"{address}{CHAT}", json={**BODY, "messages": talk, "documents": None}).json()
        plain = httpx.post(f"{address}{CHAT}", json={**BODY, "documents": None}).json()
    assert found["ragbias"]["source"] == "segmenter" and found["system_fingerprint"] == "pine, 3 documents"
    assert plain["system_fingerprint"].startswith("none, 0 documents: no documents found")


@pytest.mark.parametrize("separator", ["\n", "\n\n"])
def test_tagged_documents_are_found_by_default_in_every_order(tiny, separator):
    answers, fingerprints = set(), set()
    with serving({"tiny": tiny}) as address:
        for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
            elements = separator.join(f"<document>\n{DOCUMENTS[index]}\n</document>" for index in order)
            talk = [{"role": "user", "content": f"<documents>\n{elements}\n</documents>\n\n{QUESTION}"}]
            answer = httpx.post(f"{address}{CHAT}", json={**BODY, "messages": talk, "documents": None}).json()
            answers.add(answer["choices"][0]["message"]["content"])
            fingerprints.add(answer["system_fingerprint"])
    assert fingerprints == {"pine, 3 documents"} and len(answers) == 1


def test_tags_without_an_end_take_linear_time():
    begin = time.perf_counter()
    assert document_elements("<doc>" * 400_000) == [] and document_elements("</doc>" * 400_000) == []
    assert document_elements("<doc>a<doc>b</doc></doc><chunk id=1>c</chunk>") == [(0, 18), (24, 45)]
    assert time.perf_counter() - begin < 10  # quadratic: hours


def test_the_metrics_count_what_was_answered(tiny):
    with serving({"tiny": tiny}) as address:
        answered = httpx.post(f"{address}{CHAT}", json=BODY).json()
        httpx.post(f"{address}{CHAT}", json={**BODY, "documents": None})
        httpx.post(f"{address}{CHAT}", json={**BODY, "stream": True})
        httpx.post(f"{address}{CHAT}", json={**BODY, "n": 5})
        lines = httpx.get(f"{address}/metrics").text.splitlines()
    assert 'ragbias_answers_total{method="pine",model="tiny"} 2.0' in lines
    assert 'ragbias_plain_answers_total{method="pine",model="tiny"} 1.0' in lines
    assert 'ragbias_requests_total{path="/v1/chat/completions",status="400"} 1.0' in lines
    assert 'ragbias_time_to_first_token_seconds_count{model="tiny"} 1.0' in lines
    counted = next(line for line in lines if line.startswith("ragbias_prompt_tokens_total"))
    assert float(counted.split()[1]) > 2 * answered["usage"]["prompt_tokens"]


def test_the_time_to_the_first_token_holds_the_forward_pass(tiny, caplog):
    caplog.set_level(logging.INFO, "ragbias.serving")
    handle = tiny.model.register_forward_pre_hook(lambda *_: time.sleep(0.05))
    try:
        with serving({"tiny": tiny}) as address:
            httpx.post(f"{address}{CHAT}", json={**BODY, "stream": True})
    finally:
        handle.remove()
    (logged,) = [record.fields for record in caplog.records if record.getMessage() == "request"]
    assert 0.05 <= logged["seconds_to_first"] <= logged["seconds"]


def test_the_log_holds_what_ran_and_no_text(tiny, caplog):
    caplog.set_level(logging.INFO, "ragbias.serving")
    secret = "Zanzibar"
    with serving({"tiny": tiny}) as address, httpx.Client(base_url=address) as http:
        documents = [f"The {secret} mill has an owl.", f"The {secret} abbey has a whale."]
        talk = [{"role": "user", "content": f"What has {secret}?"}]
        http.post(CHAT, json={**BODY, "messages": talk, "documents": documents}, headers={"x-request-id": "abc-1"})
        http.post(CHAT, json={**BODY, "messages": talk, "documents": documents, "stream": True})
        http.post(CHAT, json={**BODY, "messages": [{"role": secret, "content": secret}]})
        http.post(CHAT, json={**BODY, secret: secret})
        http.post(CHAT, json={**BODY, "ragbias": {"method": secret}})
        http.post(CHAT, json={**BODY, "model": secret})
        http.get(f"/{secret}?{secret}={secret}")
    requests = [record.fields for record in caplog.records if record.getMessage() == "request"]
    assert [each["status"] for each in requests] == [200, 200, 400, 400, 400, 404, 404]
    first = requests[0]
    assert first["request_id"] == "abc-1" and first["method_ran"] == "pine" and first["documents"] == 2
    assert first["prompt_tokens"] > 0 and first["finish_reason"] in ("stop", "length")
    assert "seconds_to_first" in requests[1]
    assert secret not in json.dumps([record.__dict__ for record in caplog.records], default=repr)


def test_a_mistake_is_logged_by_its_line_and_not_by_its_text(tiny, caplog, monkeypatch):
    app, engine, _ = local_app({"tiny": tiny})

    async def fails(body: object, salt: str) -> None:
        raise ZeroDivisionError("Zanzibar")

    monkeypatch.setattr(engine, "answer", fails)
    with listening_app(app) as address:
        response = httpx.post(f"{address}{CHAT}", json=BODY)
        assert httpx.get(f"{address}/health").status_code == 200
    assert response.status_code == 500 and response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"] in response.json()["error"]["message"] and "Zanzibar" not in response.text
    (record,) = [each for each in caplog.records if each.getMessage() == "failed"]
    line = JsonLines().format(record)
    assert json.loads(line)["error"] == "ZeroDivisionError" and "Zanzibar" not in line


def test_errors_logged_by_libraries_are_written_without_text(capfd):
    with logs_restored():
        log_to_stderr()
        try:
            raise ValueError("Zanzibar")
        except ValueError:
            message = "Task exception was never retrieved\nfuture: <Task exception=ValueError('Zanzibar')>"
            logging.getLogger("asyncio").exception(message)
    (line,) = capfd.readouterr().err.splitlines()
    assert json.loads(line)["error"] == "ValueError" and "Zanzibar" not in line


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
def test_the_command_serves_and_finishes_requests_on_a_signal():
    """Start, answer, and finish a running answer after SIGTERM."""
    command = [sys.executable, "-m", "ragbias", "serve", "tiny", "--port=0", "--served-name=mine"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    logged = json.loads(process.stderr.readline())
    address = f"http://127.0.0.1:{logged['port']}"
    wait_until(lambda: httpx.get(f"{address}/ready").status_code == 200)
    answers: list[httpx.Response] = []
    body = {**BODY, "model": "mine", "max_tokens": 400, "temperature": 100.0, "ragbias": {"method": "none"}}
    asking = threading.Thread(target=lambda: answers.append(httpx.post(f"{address}{CHAT}", json=body, timeout=60)))
    asking.start()
    while 'ragbias_running_requests{model="mine"} 1.0' not in httpx.get(f"{address}/metrics").text:
        assert asking.is_alive(), "it was answered too soon"
    process.send_signal(signal.SIGTERM)
    asking.join()
    assert answers[0].status_code == 200 and answers[0].json()["choices"][0]["finish_reason"]
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert [json.loads(line)["event"] for line in errors.splitlines()][-1] == "ended"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
def test_the_command_ends_with_code_0_after_the_grace_period():
    command = [sys.executable, "-m", "ragbias", "serve", "tiny", "--port=0", "--grace-seconds=0", "--method=none"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    address = f"http://127.0.0.1:{json.loads(process.stderr.readline())['port']}"
    wait_until(lambda: httpx.get(f"{address}/ready").status_code == 200)
    body = {**BODY, "max_tokens": 3_000, "temperature": 100.0, "seed": 1}  # reaches EOS much later
    with httpx.stream("POST", f"{address}{CHAT}", json={**body, "stream": True}, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        last = [line for line in lines if line][-1]
    _, errors = process.communicate(timeout=30)
    assert '"code": "shutting_down"' in last
    assert process.returncode == 0 and json.loads(errors.splitlines()[-1])["event"] == "ended", errors


def test_the_command_refuses_in_one_line(cli, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for arguments, words in (
        ([], "no model given; name one, e.g. `ragbias serve smollm2`; expected"),
        (["tiny", "--model", "tiny"], "two models are given; name only one"),
        (["tiny", "--method", "pin"], "unknown method 'pin'"),
        (["tiny", "--host", "256.1.1.1"], "cannot listen on 256.1.1.1"),
        (["tiny", "--host", "a\udcff"], "cannot listen on a\ufffd port 8000: encoding"),
        (["nope/none"], "model 'nope/none' cannot be loaded"),
        (["none.gguf"], "model 'none.gguf': no such file"),
        (["tiny", "--on-missing", "shout"], "'shout' is not one of 'warn', 'raise', 'ignore'"),
        (["tiny", "--engine", "spark"], "'spark' is not one of 'local', 'ray'"),
        (["tiny", "--segmenter", "("], "'(' is not a regular expression: missing )"),
    ):
        with logs_restored():
            code, _, errors = cli("serve", *arguments)
        assert code == 2 and words in " ".join(errors.split()) and "listening" not in errors


def test_a_model_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=f"model '{tmp_path}' is not a folder with a config.json"):
        ModelSettings(model=str(tmp_path)).load()


class IdleModel(ServedModel):
    async def answer(self, request, settings, salt=""):
        raise NotImplementedError

    def pieces(self, request, settings, salt=""):
        raise NotImplementedError


async def test_running_requests_whose_clients_left_do_not_count_as_waiting():
    metrics = Metrics()
    model = IdleModel(None, "tiny", ServerSettings(max_waiting=1), metrics)
    waiting = partial(metrics.registry.get_sample_value, "ragbias_waiting_requests", {"model": "tiny"})
    async with model.running(2):  # of a batch that has not noticed yet
        assert waiting() == 0
    async with model.queue_slot():
        assert waiting() == 1
        with pytest.raises(ApiError, match="1 requests are waiting"):
            async with model.queue_slot():
                pass
