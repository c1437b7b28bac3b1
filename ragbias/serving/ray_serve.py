"""The server on Ray Serve: gateways receive requests, and replicas of models answer them.

Give ``ragbias.serving.ray_serve:build`` to ``serve run`` or KubeRay. ``docs/how-to/ray-serve.yaml`` shows its
arguments, which are the fields of ``Cluster``. The extra ``serve-ray`` pins Ray, because this module uses interfaces
that may change: ``RequestRouterConfig``, ``serve.ingress`` with a late-bound application, and ``ConsistentHashRouter``.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import ray.exceptions
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from ragbias.serving.app import create_app
from ragbias.serving.errors import ApiError, unknown_model
from ragbias.serving.local_engine import local_engine
from ragbias.serving.models import ModelSettings
from ragbias.serving.prompts import documents_of
from ragbias.serving.schemas import Json, RequestBody, TokenizeRequest
from ragbias.serving.server import Metrics, log, log_to_stderr
from ragbias.serving.settings import ServerSettings

ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
MAX_ATTEMPTS = 5  # maximum number of attempts if replicas die
SECONDS_BETWEEN = 0.5
DEAD = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.WorkerCrashedError)


class ReplicatedModel(ModelSettings):
    """A model of a cluster. ``max_replicas`` enables scaling to about ``target_requests`` requests per replica."""

    replicas: int = Field(default=1, ge=1)  # ignored with max_replicas
    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int | None = Field(default=None, ge=1)
    target_requests: float = Field(default=8.0, gt=0)
    num_cpus: float = Field(default=1.0, gt=0)  # per replica
    num_gpus: float = Field(default=0.0, ge=0)
    affinity: bool = True  # send requests with the same documents, in any order, to the same replica


class Cluster(BaseModel):
    """The arguments of ``build``. Set the API key in the environment variable ``RAGBIAS_API_KEY``."""

    model_config = ConfigDict(extra="forbid")

    models: list[ReplicatedModel] = Field(min_length=1)
    gateways: int = Field(default=1, ge=1)  # processes that receive requests
    settings: ServerSettings = ServerSettings()

    def server_settings(self) -> ServerSettings:
        """Return the settings. If they have no API key, it is taken from the environment."""
        key = self.settings.api_key or os.environ.get("RAGBIAS_API_KEY", "")
        return replace(self.settings, api_key=key)


@serve.deployment(health_check_period_s=2, health_check_timeout_s=30, graceful_shutdown_timeout_s=30)
class Replica:
    """An engine with one model. It returns errors, and does not raise them, because Ray would log raised errors."""

    def __init__(self, model: ReplicatedModel, settings: ServerSettings) -> None:
        log_to_stderr()
        self._engine = local_engine(model.load, settings, Metrics())
        self._engine.load()

    async def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the engine. Return the result or the error."""
        try:
            return await getattr(self._engine, name)(*arguments)
        except Exception as error:
            return _to_api_error(error)

    async def stream(self, body: RequestBody, salt: str = "") -> AsyncGenerator[Json | ApiError, None]:
        async with aclosing(self._engine.stream(body, salt)) as chunks:
            try:
                async for chunk in chunks:
                    yield chunk
            except Exception as error:
                yield _to_api_error(error)


class ClusterEngine:
    """An engine that forwards each request to a replica of its model.

    If a replica dies before it starts to answer, the request goes to another replica.
    """

    def __init__(self, handles: dict[str, DeploymentHandle[Any]], affine: dict[str, bool]) -> None:
        self._handles, self._affine = handles, affine

    @property
    def is_ready(self) -> bool:
        return True  # Ray routes requests only to ready gateways

    async def models(self) -> list[Json]:
        sends = [handle.call.remote for handle in self._handles.values()]
        answers = await asyncio.gather(*(_call_replica(send, "models") for send in sends))
        return [card for _, cards in answers for card in cards]

    async def answer(self, body: RequestBody, salt: str = "") -> Json:
        _, answer = await _call_replica(self._handle(body).call.remote, "answer", body, salt)
        return dict(answer)

    async def stream(self, body: RequestBody, salt: str = "") -> AsyncGenerator[Json, None]:
        handle = self._handle(body).options(stream=True)
        response, report = await _call_replica(handle.stream.remote, body, salt, streamed=True)
        try:
            yield report
            with suppress(StopAsyncIteration):
                while True:
                    yield await _receive(anext(response))
        except DEAD as error:
            raise ApiError(503, "the replica died during the answer", None, "replica_died", 1) from error
        finally:
            response.cancel()

    async def tokens(self, body: TokenizeRequest) -> Json:
        _, tokens = await _call_replica(self._handle_of(body.model).call.remote, "tokens", body)
        return dict(tokens)

    def _handle_of(self, name: str) -> DeploymentHandle[Any]:
        if name not in self._handles:
            raise unknown_model(name, self._handles)
        return self._handles[name]

    def _handle(self, body: RequestBody) -> DeploymentHandle[Any]:
        handle = self._handle_of(body.model)
        key = affinity(body) if self._affine[body.model] else ""
        return handle.options(session_id=key) if key else handle


def affinity(body: RequestBody) -> str:
    """Return a routing key that is the same for every order of the documents, or an empty string without documents."""
    documents = documents_of(body, sys.maxsize)  # the replica checks their number
    if not documents:
        return ""
    hashes = sorted(hashlib.sha256(document.text.encode()).hexdigest() for document in documents)
    return hashlib.sha256("\n".join([body.model, *hashes]).encode()).hexdigest()


async def _call_replica(send: Callable[..., Any], *arguments: object, streamed: bool = False) -> tuple[Any, Any]:
    """Send a request to a replica, and send it again if the replica dies.

    Return the response and its result or, if ``streamed``, its first item.
    """
    for tries_left in reversed(range(MAX_ATTEMPTS)):
        response = send(*arguments)
        try:
            return response, await _receive(anext(response) if streamed else response)
        except asyncio.CancelledError:
            response.cancel()
            raise
        except DEAD as error:
            log("replica died", tries_left=tries_left, kind=type(error).__name__)
            died = error
        if tries_left:
            await asyncio.sleep(SECONDS_BETWEEN)
    message = "the replicas of this model keep dying; Ray's logs on the server show why"
    raise ApiError(503, message, None, "replica_died", retry_after=5) from died


async def _receive(response: Awaitable[Any]) -> Any:
    """Await a result of a replica. Raise the result if it is an error."""
    result = await response
    if isinstance(result, ApiError):
        raise result
    return result


def _to_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    log("failed", logging.ERROR, error)
    return ApiError(500, "internal error; see the replica's log", None, "internal_error")


@serve.deployment(health_check_period_s=2)
@serve.ingress()
class Gateway:
    """The HTTP application, in a process without a model."""

    def __init__(self, settings: ServerSettings, affine: dict[str, bool], *handles: DeploymentHandle[Any]) -> None:
        log_to_stderr()
        self._settings = settings
        self._engine = ClusterEngine(dict(zip(affine, handles, strict=True)), affine)

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(self._engine, self._settings, Metrics())


def build(args: Cluster) -> serve.Application:
    """Build the Ray Serve application. Ray passes ``args`` from its configuration file."""
    settings = args.server_settings()
    affine = {model.served_name: model.affinity for model in args.models}
    replicas = []
    for index, model in enumerate(args.models):
        options: dict[str, Any] = {
            "name": f"model-{index}",
            "max_ongoing_requests": settings.max_waiting + settings.max_batch,
            "ray_actor_options": {"num_cpus": model.num_cpus, "num_gpus": model.num_gpus},
        }
        if model.affinity:
            options["request_router_config"] = RequestRouterConfig(request_router_class=ROUTER)  # type: ignore[arg-type]
        if model.max_replicas is None:
            options["num_replicas"] = model.replicas
        else:
            options["autoscaling_config"] = AutoscalingConfig(
                min_replicas=model.min_replicas,
                max_replicas=model.max_replicas,
                target_ongoing_requests=model.target_requests,
            )
        replicas.append(Replica.options(**options).bind(model, settings))  # type: ignore[attr-defined]
    gateway = Gateway.options(  # type: ignore[attr-defined]
        num_replicas=args.gateways, max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0}
    )
    application: serve.Application = gateway.bind(settings, affine, *replicas)
    return application


def run(cluster: Cluster, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM, on the Ray cluster at ``RAY_ADDRESS`` or on this machine."""
    stopping = threading.Event()
    start(cluster, host, port)
    serve.run(build(cluster), name="ragbias", route_prefix="/")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    log("ready", host=host, port=port)
    stopping.wait()
    serve.shutdown()  # type: ignore[no-untyped-call]
    log("ended")


def start(cluster: Cluster, host: str, port: int) -> None:
    """Start Ray and Ray Serve, or connect to the cluster at ``RAY_ADDRESS``."""
    quiet: dict[str, Any] = {"log_to_driver": True, "logging_level": "ERROR"}
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, **quiet)
    else:
        needed = sum((model.max_replicas or model.replicas) * model.num_cpus for model in cluster.models)
        ray.init(num_cpus=max(os.cpu_count() or 1, int(needed) + 1), include_dashboard=False, **quiet)
    serve.start(http_options={"host": host, "port": port}, logging_config={"enable_access_log": False})
