"""The same application on Ray Serve: a gateway takes requests, replicas of models answer them.

``serve run`` and KubeRay take ``ragbias.serving.ray_serve:build`` with the arguments of ``Cluster``; see
``docs/how-to/ray-serve.yaml``. Of Ray 2.60 this uses, beside its stable interface, ``RequestRouterConfig`` and
``serve.ingress`` with a late-bound application (alpha) and ``ConsistentHashRouter`` (experimental), which is why the
extra ``serve-ray`` pins it.
"""

from __future__ import annotations

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
from ragbias.serving.cluster_engine import ClusterEngine, parsed
from ragbias.serving.loading import document_cache, load_served
from ragbias.serving.local_engine import LocalEngine
from ragbias.serving.logs import log, to_stderr
from ragbias.serving.metrics import Metrics
from ragbias.serving.schemas import Json
from ragbias.serving.settings import ServerSettings

ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


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

    def __init__(self, model: ReplicatedModel, settings: ServerSettings) -> None:
        to_stderr()

        def load() -> dict[str, Any]:
            cache = document_cache(model.cache, model.cache_memory)
            lm = load_served(model.model, model.method, model.dtype, model.device, model.strip_numbering, cache)
            return {model.served_name: lm}

        self._engine = LocalEngine(load, settings, Metrics())
        self._engine.load()

    async def card(self) -> Json:
        """The model in the shape of ``/v1/models``."""
        (found,) = await self._engine.models()
        return found

    async def answer(self, kind: str, body: Json) -> Json:
        """The body of the response."""
        return await self._engine.answer(parsed(kind, body))

    async def stream(self, kind: str, body: Json) -> AsyncIterator[Json]:
        """The report, and then the chunks."""
        answering = await self._engine.stream(parsed(kind, body))
        try:
            yield answering.report
            async for chunk in answering.chunks():
                yield chunk
        finally:
            await answering.close()

    async def tokens(self, kind: str, body: Json) -> Json:
        """The tokens of a text."""
        return await self._engine.tokens(parsed(kind, body))


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
