"""Two replicas in separate processes, one killed under load. It takes a minute and runs only on request."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import ray
from ray import serve
from serving.conftest import DOCUMENTS, QUESTION

from ragbias.serving.ray_serve import Cluster, ReplicatedModel, build, start
from support.live_server import open_listener

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("RAGBIAS_TEST_RAY"), reason="takes a minute; set RAGBIAS_TEST_RAY=1"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with open_listener("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    cluster = Cluster(models=[ReplicatedModel(model="tiny", replicas=2, num_cpus=0.5)])
    start(cluster, "127.0.0.1", port)
    serve.run(build(cluster), name="ragbias", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def test_every_request_is_answered_though_a_replica_dies(address):
    def ask(number: int) -> tuple[int, str]:
        documents = [f"The mascot of Heron Mill number {number % 7} is a brass owl.", *DOCUMENTS]
        talk = [{"role": "user", "content": QUESTION}]
        body = {
            "model": "tiny",
            "messages": talk,
            "documents": documents,
            "max_tokens": 8,
            "ragbias": {"method": "ape"},
        }
        response = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120)
        return response.status_code, response.json()["choices"][0]["message"][
            "content"
        ] if response.is_success else response.text

    before = [ask(number) for number in range(7)]
    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(ask, number) for number in range(84)]
        time.sleep(1)
        replicas = [each for each in ray.util.list_named_actors(all_namespaces=True) if "model-0" in each["name"]]
        ray.kill(ray.get_actor(replicas[0]["name"], namespace=replicas[0]["namespace"]))
        responses = [each.result() for each in futures]
    assert responses == before * 12


def test_no_log_of_ray_contains_text_of_a_client(address):
    talk = [{"role": "user", "content": "Zanzibar"}]
    for fields in (
        {"ragbias": {"method": "Zanzibar"}},
        {"tools": [{"type": "function", "function": {"name": "f", "description": "Zanzibar"}}]},
        {"response_format": {"type": "Zanzibar"}},
        {"ragbias": {"method": "Zanzibar"}, "stream": True},
    ):
        body = {"model": "tiny", "messages": talk, **fields}
        assert httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60).status_code == 400
    logs = Path("/tmp/ray/session_latest/logs")
    assert [path for path in logs.rglob("*") if path.is_file() and b"Zanzibar" in path.read_bytes()] == []
