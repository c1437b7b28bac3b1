"""The same application on Ray Serve: a gateway takes requests, replicas of models answer them.

``serve run`` and KubeRay take ``ragbias.serving.ray_serve:build`` with the arguments of ``Cluster``; see
``docs/how-to/ray-serve.yaml``. Of Ray 2.60 this uses, beside its stable interface, ``RequestRouterConfig`` and
``serve.ingress`` with a late-bound application (alpha) and ``ConsistentHashRouter`` (experimental), which is why the
extra ``serve-ray`` pins it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import ray.exceptions
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from ragbias.serving.app import create_app
from ragbias.serving.engine import Answering
from ragbias.serving.errors import ApiError
from ragbias.serving.loading import document_cache, load_served
from ragbias.serving.local_engine import LocalEngine
from ragbias.serving.logs import log, to_stderr
from ragbias.serving.metrics import Metrics
from ragbias.serving.schemas import ChatRequest, CompletionRequest, Json, Request, TokenizeRequest
from ragbias.serving.settings import ServerSettings

ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
TRIES = 5  # of a request whose replica dies
SECONDS_BETWEEN = 0.5
DEAD = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.WorkerCrashedError)
KINDS: dict[str, type[Request] | type[TokenizeRequest]] = {
    each.__name__: each for each in (ChatRequest, CompletionRequest, TokenizeRequest)
}


class ReplicatedModel(BaseModel):
    """One model of a cluster.

    Attributes:
        name: what clients call it; default: ``model``.
        replicas: of them; ignored with ``max_replicas``.
        min_replicas, max_replicas: for autoscaling by the requests that each has in work, ``target_requests``.
        num_cpus, num_gpus: of each replica.
        cache: folder where documents are kept, which replicas may share.
        cache_memory: that each replica keeps documents in, e.g. ``"4GB"``; with a folder 2 GB by default.
        affinity: send requests with the same documents, whatever their order, to the same replica.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    name: str | None = None
    method: str = "pine"
    dtype: str = "auto"
    device: str | None = None
    strip_numbering: bool = False
    cache: str | None = None
    cache_memory: str | None = None
    replicas: int = Field(default=1, ge=1)
    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int | None = Field(default=None, ge=1)
    target_requests: float = Field(default=8.0, gt=0)
    num_cpus: float = Field(default=1.0, gt=0)
    num_gpus: float = Field(default=0.0, ge=0)
    affinity: bool = True

    @property
    def served_name(self) -> str:
        """What clients call it."""
        return self.name or self.model


class Cluster(BaseModel):
    """The arguments of ``build``.

    Attributes:
        gateways: processes that take requests.
        settings: those of ``ragbias.serving.settings.ServerSettings``; the key is better in ``RAGBIAS_API_KEY``.
    """

    model_config = ConfigDict(extra="forbid")

    models: list[ReplicatedModel] = Field(min_length=1)
    gateways: int = Field(default=1, ge=1)
    settings: dict[str, Any] = {}

    def server_settings(self) -> ServerSettings:
        """The settings, with the key of the environment."""
        return ServerSettings(**{"api_key": os.environ.get("RAGBIAS_API_KEY", ""), **self.settings})


@serve.deployment(health_check_period_s=2, health_check_timeout_s=30, graceful_shutdown_timeout_s=30)
class Replica:
    """A model in a process of its own."""

    def __init__(self, told: ReplicatedModel, settings: ServerSettings) -> None:
        to_stderr()

        def load() -> dict[str, Any]:
            cache = document_cache(told.cache, told.cache_memory)
            own = (told.model, told.method, told.dtype, told.device, told.strip_numbering, cache)
            return {told.served_name: load_served(*own)}

        self._engine = LocalEngine(load, settings, Metrics())
        self._engine.load()

    async def card(self) -> Json:
        """The model in the shape of ``/v1/models``."""
        (found,) = await self._engine.models()
        return found

    async def answer(self, kind: str, body: Json) -> Json:
        """The body of the response."""
        return await self._engine.answer(_body(kind, body))

    async def stream(self, kind: str, body: Json) -> AsyncIterator[Json]:
        """The report, and then the chunks."""
        answering = await self._engine.stream(_body(kind, body))
        try:
            yield answering.report
            async for chunk in answering.chunks():
                yield chunk
        finally:
            await answering.close()

    async def tokens(self, kind: str, body: Json) -> Json:
        """The tokens of a text."""
        return await self._engine.tokens(_body(kind, body))


@serve.deployment(health_check_period_s=2)
@serve.ingress()
class Gateway:
    """The HTTP application; it answers nothing itself."""

    def __init__(self, settings: ServerSettings, affine: dict[str, bool], *handles: DeploymentHandle[Any]) -> None:
        to_stderr()
        self._settings = settings
        self._engine = ClusterEngine(dict(zip(affine, handles, strict=True)), affine)

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(self._engine, self._settings, Metrics())


class ClusterEngine:
    """Hands requests to the replicas of their model.

    A request whose replica dies before it has answered anything goes to another one.

    Args:
        handles: by the name of the model.
        affine: whether requests with the same documents go to the same replica, by the name of the model.
    """

    def __init__(self, handles: dict[str, DeploymentHandle[Any]], affine: dict[str, bool]) -> None:
        self._handles, self._affine = handles, affine

    @property
    def is_ready(self) -> bool:
        return True  # Ray sends no requests before

    async def models(self) -> list[Json]:
        return list(await asyncio.gather(*(_tried(handle.card.remote) for handle in self._handles.values())))

    async def answer(self, body: Request) -> Json:
        handle = self._handle(body)
        found: Json = await _tried(lambda: handle.answer.remote(type(body).__name__, _plain(body)))
        return found

    async def stream(self, body: Request) -> Answering:
        handle = self._handle(body).options(stream=True)
        for left in range(TRIES - 1, -1, -1):
            response: Any = handle.stream.remote(type(body).__name__, _plain(body))
            try:
                return _ClusterAnswering(response, await _told(anext(response)))
            except asyncio.CancelledError:
                response.cancel()
                raise
            except DEAD as error:
                await _wait(left, error)
        raise AssertionError("unreachable")

    async def tokens(self, body: TokenizeRequest) -> Json:
        handle = self._named(body.model)
        found: Json = await _tried(lambda: handle.tokens.remote(type(body).__name__, _plain(body)))
        return found

    def _named(self, name: str) -> DeploymentHandle[Any]:
        if name not in self._handles:
            known = ", ".join(map(repr, self._handles))
            raise ApiError(404, f"there is no model {name!r}; here: {known}", "model", "model_not_found")
        return self._handles[name]

    def _handle(self, body: Request) -> DeploymentHandle[Any]:
        handle = self._named(body.model)
        key = affinity(body) if self._affine[body.model] else ""
        return handle.options(session_id=key) if key else handle


class _ClusterAnswering:
    """A stream of a replica."""

    def __init__(self, response: Any, report: Json) -> None:
        self._response, self.report = response, report

    async def chunks(self) -> AsyncIterator[Json]:
        try:
            while True:
                try:
                    chunk = await _told(anext(self._response))
                except StopAsyncIteration:
                    return
                yield chunk
        except DEAD as error:
            raise ApiError(503, "the replica died in the midst of the answer", None, "replica_died", 1) from error

    async def close(self) -> None:
        self._response.cancel()


def affinity(body: Request) -> str:
    """What is equal for requests with the same documents in any order; empty for those that name none."""
    given = body.documents
    if given is None and isinstance(body, ChatRequest) and body.chat_template_kwargs is not None:
        given = body.chat_template_kwargs.documents
    if not given:
        return ""
    hashes = sorted(hashlib.sha256(each.text.encode()).hexdigest() for each in given)
    return hashlib.sha256("\n".join([body.model, *hashes]).encode()).hexdigest()


async def _tried(ask: Any) -> Any:
    """The answer of a replica; of another one where the first one dies."""
    for left in range(TRIES - 1, -1, -1):
        response = ask()
        try:
            return await _told(response)
        except asyncio.CancelledError:
            response.cancel()
            raise
        except DEAD as error:
            await _wait(left, error)
    raise AssertionError("unreachable")


async def _told(response: Any) -> Any:
    """What comes, with an error of the replica as it was raised there."""
    try:
        return await response
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ApiError):
            raise error.cause from None
        raise


async def _wait(left: int, error: Exception) -> None:
    log("replica died", tries_left=left, kind=type(error).__name__)
    if not left:
        raise ApiError(503, "the replicas of this model die", None, "replica_died", retry_after=5) from error
    await asyncio.sleep(SECONDS_BETWEEN)


def _plain(body: BaseModel) -> Json:
    return body.model_dump(mode="json", exclude_none=True)


def _body(kind: str, body: Json) -> Any:
    return KINDS[kind].model_validate(body)


def build(args: Cluster) -> serve.Application:
    """The application of a cluster; Ray gives it the arguments of its configuration."""
    settings = args.server_settings()
    affine = {each.served_name: each.affinity for each in args.models}
    bound = []
    for index, each in enumerate(args.models):
        options: dict[str, Any] = {
            "name": f"model-{index}",
            "max_ongoing_requests": settings.max_waiting + settings.max_batch,
            "ray_actor_options": {"num_cpus": each.num_cpus, "num_gpus": each.num_gpus},
        }
        if each.affinity:
            options["request_router_config"] = RequestRouterConfig(request_router_class=ROUTER)  # type: ignore[arg-type]
        if each.max_replicas is None:
            options["num_replicas"] = each.replicas
        else:
            options["autoscaling_config"] = AutoscalingConfig(
                min_replicas=each.min_replicas,
                max_replicas=each.max_replicas,
                target_ongoing_requests=each.target_requests,
            )
        bound.append(Replica.options(**options).bind(each, settings))  # type: ignore[attr-defined]
    gateway = Gateway.options(  # type: ignore[attr-defined]
        num_replicas=args.gateways, max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0}
    )
    application: serve.Application = gateway.bind(settings, affine, *bound)
    return application


def run(cluster: Cluster, host: str, port: int) -> None:
    """Serve until the process is told to end, on the cluster of ``RAY_ADDRESS``, else on this machine."""
    ended = threading.Event()
    start(cluster, host, port)
    serve.run(build(cluster), name="ragbias", route_prefix="/")
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    log("ready", host=host, port=port)
    ended.wait()
    serve.shutdown()  # type: ignore[no-untyped-call]
    log("ended")


def start(cluster: Cluster, host: str, port: int) -> None:
    """Start Ray and Serve where they are not running."""
    quiet: dict[str, Any] = {"log_to_driver": True, "logging_level": "ERROR"}
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, **quiet)
    else:
        needed = sum((each.max_replicas or each.replicas) * each.num_cpus for each in cluster.models)
        ray.init(num_cpus=max(os.cpu_count() or 1, int(needed) + 1), include_dashboard=False, **quiet)
    serve.start(http_options={"host": host, "port": port})
