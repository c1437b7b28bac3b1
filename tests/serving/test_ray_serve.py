"""Ray Serve's engine: equal answers, errors and streams, routing of requests, and replicas that die."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from pydantic import ValidationError
from ray import serve
from ray.exceptions import RayActorError
from serving.conftest import CHAT, DOCUMENTS, QUESTION

from ragbias.serving import ray_serve
from ragbias.serving.app import create_app
from ragbias.serving.errors import ApiError
from ragbias.serving.ray_serve import Cluster, ClusterEngine, ReplicatedModel, affinity, build
from ragbias.serving.schemas import ChatRequest
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ServerSettings
from support.live_server import events, listening_app, logs_restored

BODY = {"model": "mine", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8, "documents": DOCUMENTS}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The application over a replica in this process, in Ray's local mode."""
    model = ReplicatedModel(model="tiny", name="mine")
    with logs_restored():
        handle = serve.run(ray_serve.Replica.bind(model, ServerSettings()), _local_testing_mode=True)
        engine = ClusterEngine({"mine": handle}, {"mine": False})
        with listening_app(create_app(engine, ServerSettings(), Metrics())) as found:
            yield found


def test_a_replica_answers_what_the_model_answers(address, tiny):
    answer = httpx.post(f"{address}{CHAT}", json=BODY).json()
    shown = [{"role": "user", "content": "".join(f"{text}\n\n" for text in DOCUMENTS) + QUESTION}]
    own = tiny.generate(tiny.chat_text(shown), documents=DOCUMENTS, max_new_tokens=8)
    assert answer["choices"][0]["message"]["content"] == own.text and answer["ragbias"] == own.report.as_dict()
    assert httpx.get(f"{address}/v1/models").json()["data"][0]["id"] == "mine"
    tokens = httpx.post(f"{address}/tokenize", json={"model": "mine", "prompt": QUESTION}).json()
    assert tokens["tokens"] == tiny.tokenizer(QUESTION, add_special_tokens=False)["input_ids"]


def test_streams_come_through(address):
    whole = httpx.post(f"{address}{CHAT}", json=BODY).json()["choices"][0]["message"]["content"]
    response = httpx.post(f"{address}{CHAT}", json={**BODY, "stream": True})
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in events(response)) == whole
    assert response.headers["x-ragbias-documents"] == "3" and response.text.endswith("data: [DONE]\n\n")


def test_errors_of_a_replica_are_the_clients(address):
    for changes, status, param in (
        ({"n": 2}, 400, "n"),
        ({"ragbias": {"method": "pin"}}, 400, "ragbias.method"),
        ({"model": "other"}, 404, "model"),
        ({"ragbias": {"method": "pin"}, "stream": True}, 400, "ragbias.method"),
    ):
        response = httpx.post(f"{address}{CHAT}", json={**BODY, **changes})
        assert response.status_code == status and response.json()["error"]["param"] == param


async def test_replicas_raise_nothing_that_ray_would_log(caplog):
    with logs_restored():
        replica = ray_serve.Replica.func_or_class(ReplicatedModel(model="tiny", name="mine"), ServerSettings())
    wrong = request(ragbias={"method": "Zanzibar"})
    streamed = [item async for item in replica.stream(wrong)]
    for error in (await replica.call("answer", wrong), *streamed):
        assert isinstance(error, ApiError) and "Zanzibar" in error.detail
    replica._engine._served["mine"].prepared_request = None  # a mistake
    error = await replica.call("answer", request())
    assert error.status_code == 500 and error.code == "internal_error" and "Zanzibar" not in caplog.text


def request(**changes: object) -> ChatRequest:
    return ChatRequest.model_validate({**BODY, **changes})


async def streamed(handle: Dying) -> list[dict[str, str]]:
    stream = ClusterEngine({"mine": handle}, {"mine": True}).stream(request(stream=True))
    return [item async for item in stream]


def test_the_order_of_documents_does_not_change_the_replica():
    key = affinity(request())
    assert key and affinity(request(documents=DOCUMENTS[::-1], seed=4)) == key
    assert affinity(request(documents=None, chat_template_kwargs={"documents": DOCUMENTS})) == key
    assert affinity(request(documents=DOCUMENTS[:2])) != key != affinity(request(model="other"))
    assert affinity(request(documents=None)) == ""


class Dying:
    """A stand-in for a handle whose first replicas die, with Ray's errors."""

    def __init__(self, deaths: int, after: int = 0) -> None:
        self.deaths, self.after, self.n_requests = deaths, after, 0
        self.call = self.stream = self

    def options(self, **_: object) -> Dying:
        return self

    def remote(self, *_: object) -> Dying._Response:
        self.n_requests += 1
        return Dying._Response(self.n_requests <= self.deaths, self.after)

    class _Response:
        def __init__(self, dies: bool, after: int) -> None:
            self.dies, self.after = dies, after
            self._chunks = self._stream()

        def __await__(self):
            async def one() -> dict[str, str]:
                if self.dies:
                    raise RayActorError
                return {"told": "yes"}

            return one().__await__()

        async def _stream(self) -> AsyncIterator[dict[str, str]]:
            for _ in range(self.after):
                yield {"report": "there"}
            if self.dies:
                raise RayActorError
            yield {"report": "there"}

        def __anext__(self):
            return self._chunks.__anext__()

        def cancel(self) -> None:
            self.dies = False


async def test_a_request_whose_replica_dies_goes_to_another(monkeypatch):
    monkeypatch.setattr(ray_serve, "SECONDS_BETWEEN", 0)
    for deaths in (0, 1, 4):
        handle = Dying(deaths)
        assert await ClusterEngine({"mine": handle}, {"mine": True}).answer(request()) == {"told": "yes"}
        assert handle.n_requests == deaths + 1
        handle = Dying(deaths)
        assert await streamed(handle) == [{"report": "there"}] and handle.n_requests == deaths + 1
    with pytest.raises(ApiError, match="replicas of this model keep dying; Ray's logs on the server show") as caught:
        await ClusterEngine({"mine": Dying(99)}, {"mine": True}).answer(request())
    assert caught.value.status_code == 503


async def test_a_stream_that_has_begun_ends_with_an_error():
    with pytest.raises(ApiError, match="died during the answer"):
        await streamed(Dying(1, after=1))


def test_errors_and_requests_travel_between_processes():
    error = pickle.loads(pickle.dumps(ApiError(429, "later", None, "queue_full", retry_after=1)))
    assert error.as_dict()["error"]["code"] == "queue_full" and error.headers == {"retry-after": "1"}
    body = request(chat_template_kwargs={"documents": DOCUMENTS, "mood": "merry"}, documents=None)
    assert pickle.loads(pickle.dumps(body)) == body


def test_a_cluster_is_built_from_its_arguments(monkeypatch):
    monkeypatch.setenv("RAGBIAS_API_KEY", "key")
    cluster = Cluster.model_validate(
        {
            "models": [{"model": "tiny", "replicas": 2}, {"model": "smollm2", "name": "s", "max_replicas": 3}],
            "settings": {"max_batch": 4},
        }
    )
    assert cluster.server_settings().api_key == "key" and cluster.server_settings().max_batch == 4
    assert build(cluster) is not None
    with pytest.raises(ValidationError, match=r"settings\.max_batch\n.*greater than or equal to 1.*input_value=0"):
        Cluster.model_validate({"models": [{"model": "tiny"}], "settings": {"max_batch": 0}})
    with pytest.raises(ValidationError, match=r"settings\.max_batch\n.*greater than or equal to 1.*input_value=0"):
        Cluster(models=[ReplicatedModel(model="tiny")], settings=ServerSettings(max_batch=0))
