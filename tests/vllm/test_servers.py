"""``ragbias proxy`` and vLLM as servers: killed processes, a store that changes under load, and tenants."""

import itertools
import random
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from ragbias import DebiasedLM, DocumentCache
from ragbias.cache.stores import SUFFIX
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ProxySettings, UpstreamModel
from ragbias_vllm.proxy import create_vllm_proxy
from studies.vllm_demo import free_port, run_process, vllm_command
from support.concurrency import wait_until
from support.live_server import events, listening_app
from support.vllm_engine import random_prompts

COMPLETIONS = "/v1/completions"
FAILURES = {"upstream_unreachable", "upstream_failed", "upstream_broke_off", "store_unavailable"}
TOKENS = 24
CLIENTS = 8
SECONDS = 120  # maximum time until a condition holds


@pytest.fixture(scope="module")
def prompts():
    return random_prompts(6 * CLIENTS, most=8)


@pytest.fixture(scope="module")
def right(prompts):
    lm = DebiasedLM.from_pretrained("tiny", method="pcw", dtype="float32")
    bodies = [body_of(prompt) for prompt in prompts]
    return [
        lm.generate(body["prompt"], documents=body["documents"], max_new_tokens=TOKENS, logprobs=False).text
        for body in bodies
    ]


@contextmanager
def vllm_on(port: int, folder: Path, **connector) -> Iterator[psutil.Process]:
    """Run vLLM with the connector and the embedded model. Yield the process of its server."""
    command = vllm_command(sys.executable, "tiny", 2048, port, {"folder": str(folder), "memory": None, **connector})
    with run_process(command, folder.parent / "vllm.log", address_of(port), "/health") as running:
        yield psutil.Process(running.pid)


@contextmanager
def proxy_to(port: int, method: str = "pcw", cache: Path | None = None, **settings) -> Iterator[httpx.Client]:
    more = {"cache": cache, "cache_disk": "1GB", "dtype": "float32"} if cache else {}
    upstream = UpstreamModel(address_of(port), method, **more)
    app, load = create_vllm_proxy(upstream, ProxySettings(**settings), Metrics())
    load()
    with listening_app(app) as address, httpx.Client(base_url=address, timeout=SECONDS) as client:
        yield client


def address_of(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def counter(port: int, name: str) -> float:
    """Return one of vLLM's counters."""
    lines = httpx.get(f"{address_of(port)}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[int, Path]]:
    """The port of one vLLM for several tests, and the folder of its documents."""
    port, folder = free_port(), tmp_path_factory.mktemp("vllm") / "documents"
    with vllm_on(port, folder):
        yield port, folder


def body_of(prompt, order=None, **more) -> dict[str, object]:
    documents = [prompt.documents[index] for index in order or range(len(prompt.documents))]
    text = prompt.prefix + "".join(documents) + prompt.suffix
    return {"model": "tiny", "prompt": text, "documents": documents, "max_tokens": TOKENS, **more}


def shuffled(prompt, draw: random.Random, **more) -> dict[str, object]:
    return body_of(prompt, draw.sample(range(count := len(prompt.documents)), count), **more)


def answer(client: httpx.Client, body: dict[str, object], **headers: str) -> tuple[str, str]:
    """Return the text of an answer, and the code of its error or an empty string."""
    response = client.post(COMPLETIONS, json=body, headers=headers)
    found = events(response) if body.get("stream") and response.status_code == 200 else [response.json()]
    if "error" in found[-1]:
        return "", found[-1]["error"]["code"]
    return "".join(choice["text"] for event in found for choice in event["choices"]), ""


def wait_until_ready(client: httpx.Client, status: int) -> None:
    wait_until(lambda: client.get("/ready").status_code == status)


def test_a_killed_process_is_a_clear_error_and_loses_nothing(tmp_path, prompts, right):
    port, folder = free_port(), tmp_path / "documents"
    expected = [(text, "") for text in right]
    answered: list[int] = []

    def load(client: httpx.Client, first: int) -> str:
        """Send requests until one fails, and return the code of its error."""
        draw, error = random.Random(first), ""
        for index in itertools.cycle(range(first, len(prompts), CLIENTS)):
            text, error = answer(client, shuffled(prompts[index], draw, stream=bool(draw.randrange(2))))
            if error:
                break
            assert text == right[index]
            answered.append(index)
        return error

    def check_answers(client: httpx.Client, count: int) -> None:
        wait_until_ready(client, 200)
        assert [answer(client, body_of(prompt)) for prompt in prompts[:count]] == expected[:count]

    with ExitStack() as stack, ThreadPoolExecutor(CLIENTS) as threads:
        client = None
        for victim in ("VLLM::Worker", "server"):
            with vllm_on(port, folder) as running:
                client = client or stack.enter_context(proxy_to(port))
                check_answers(client, CLIENTS)  # the load computes the documents of the other prompts
                answered.clear()
                loads = [threads.submit(load, client, first) for first in range(CLIENTS)]
                wait_until(lambda: len(answered) >= CLIENTS)
                named = {process.name(): process for process in running.children(recursive=True)}
                (running if victim == "server" else named[victim]).kill()
                assert {task.result(SECONDS) for task in loads} <= FAILURES
            wait_until_ready(client, 503)
            assert DocumentCache(folder=folder).verify() == {}
        with vllm_on(port, folder):
            check_answers(client, len(prompts))
        assert not list(folder.glob("*.tmp"))


def test_answers_are_right_or_fail_while_the_store_changes(server, prompts, right):
    port, folder = server
    before = counter(port, "vllm:ragbias_refusals_total")
    with proxy_to(port) as client, ThreadPoolExecutor(CLIENTS) as threads:

        def load(first: int) -> list[str]:
            draw, errors = random.Random(first), []
            for number, index in enumerate(draw.choices(range(len(prompts)), k=30)):
                if number % 5 == 4:
                    damage(folder, draw)
                    httpx.post(f"{address_of(port)}/reset_prefix_cache")  # it contains answers
                text, error = answer(client, shuffled(prompts[index], draw, stream=bool(draw.randrange(2))))
                assert text == ("" if error else right[index])
                errors.append(error)
            return errors

        errors = [error for found in threads.map(load, range(CLIENTS)) for error in found]
        assert "" in errors and set(errors) <= {"", *FAILURES}
        assert counter(port, "vllm:ragbias_refusals_total") > before
        assert [answer(client, body_of(prompt)) for prompt in prompts] == [(text, "") for text in right]


def damage(folder: Path, draw: random.Random) -> None:
    """Delete, cut or change entries, or the folder."""
    entries = sorted(folder.glob(f"*{SUFFIX}"))
    kind = draw.choice(["delete", "cut", "change", "folder"])
    if kind == "folder":
        shutil.rmtree(folder, ignore_errors=True)
    for path in draw.sample(entries, len(entries) // 4) if kind != "folder" else ():
        with suppress(FileNotFoundError):  # renamed in the meantime
            data = path.read_bytes()
            if kind == "delete":
                path.unlink()
            else:
                path.write_bytes(data[:-7] if kind == "cut" else data[:-1] + b"?")


def test_a_read_only_folder_is_an_error_until_it_is_writable(server, prompts, right):
    port, folder = server
    with proxy_to(port) as client:
        shutil.rmtree(folder, ignore_errors=True)
        folder.write_text("")
        httpx.post(f"{address_of(port)}/reset_prefix_cache")
        assert [answer(client, body_of(prompt)) for prompt in prompts[:3]] == [("", "store_unavailable")] * 3
        folder.unlink()
        assert [answer(client, body_of(prompt)) for prompt in prompts[:3]] == [(text, "") for text in right[:3]]


def test_tenants_share_neither_documents_nor_blocks_nor_counts(server):
    port, _ = server
    (prompt,) = random_prompts(1, seed=5, fewest=12, most=12)  # longer than several blocks
    names = ("vllm:prefix_cache_hits_total", "vllm:ragbias_stored_bytes_total")

    def counts(client: httpx.Client, key: str, method: str) -> tuple[int, float, float]:
        """Return an answer's cached tokens, the tokens from vLLM's prefix cache, and the bytes that vLLM stored."""
        before = [counter(port, name) for name in names]
        body = body_of(prompt, ragbias={"method": method})
        response = client.post(COMPLETIONS, json=body, headers={"authorization": f"Bearer {key}"}).json()
        cached = response["usage"]["prompt_tokens_details"]["cached_tokens"]
        return (cached, *(counter(port, name) - value for name, value in zip(names, before, strict=True)))

    with proxy_to(port, api_key="a\nb") as client:
        for method in ("pcw", "none"):
            first = counts(client, "a", method)
            again = counts(client, "a", method)
            assert first[:2] == (0, 0) and (first[2] > 0) == (method == "pcw")
            assert again[1] > 0 and again[2] == 0
            assert counts(client, "b", method) == first
            assert counts(client, "b", method) == again


def test_the_proxy_computes_the_documents_of_rotor(tmp_path, prompts):
    lm = DebiasedLM.from_pretrained("tiny", method="rotor", dtype="float32")
    port, folder, draw = free_port(), tmp_path / "documents", random.Random(0)
    with vllm_on(port, folder, portable=True), proxy_to(port, "rotor", folder) as client:
        for prompt in prompts[:CLIENTS]:
            body = body_of(prompt)
            text = lm.generate(body["prompt"], documents=body["documents"], max_new_tokens=TOKENS).text
            assert answer(client, body) == answer(client, shuffled(prompt, draw, stream=True)) == (text, "")
        before = counter(port, "vllm:ragbias_loaded_tokens_total")
        shutil.rmtree(folder)
        httpx.post(f"{address_of(port)}/reset_prefix_cache")
        assert answer(client, shuffled(prompt, draw)) == (text, "")  # computed again
        assert counter(port, "vllm:ragbias_loaded_tokens_total") > before > 0
