"""``ragbias serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ragbias.checks import Bounds
from ragbias.cli.numeric import whole
from ragbias.cli.terminal import MODELS, quiet_libraries
from ragbias.extras import required, required_all
from ragbias.methods import DEFAULT_METHOD

PORTS = Bounds(0, 65_535)
COUNTS = Bounds(1, 1_000_000)
TOKENS = Bounds(1, 10_000_000)
MEGABYTES = Bounds(1, 2_000)
SECONDS = Bounds(0, 86_400)
REPLICAS = Bounds(1, 10_000)

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")]
Port = Annotated[int, whole(PORTS, "Port to listen on; 0 for any free one.")]
ApiKey = Annotated[str, typer.Option(envvar="RAGBIAS_API_KEY", help="Key that requests must send.")]
Separator = Annotated[str, typer.Option(help="Text between documents, for prompts without `documents`.")]
StripNumbering = Annotated[bool, typer.Option("--strip-numbering", help="Remove document numbers.")]
OnMissing = Annotated[
    Literal["warn", "raise", "ignore"], typer.Option(help="If a method misses its documents: warn, raise or ignore.")
]
MaxDocuments = Annotated[int, whole(COUNTS, "Documents per request.")]
MaxBody = Annotated[int, whole(MEGABYTES, "Megabytes per request.")]
Grace = Annotated[int, whole(SECONDS, "Time for running requests to finish at shutdown.")]


def serve(
    model: Annotated[str | None, typer.Argument(help=MODELS)] = None,
    named: Annotated[str | None, typer.Option("--model", help="Same as the argument.")] = None,
    method: Annotated[str, typer.Option(help="Default method, see `ragbias methods`.")] = DEFAULT_METHOD,
    served_name: Annotated[str | None, typer.Option(help="Model name for clients. Default: the model.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = "",
    dtype: Annotated[str, typer.Option(help="Weights: auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str | None, typer.Option(help="Such as cuda. Default: a GPU if there is one.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Run each request alone, so that its bits do not depend on others.")
    ] = False,
    strip_numbering: StripNumbering = False,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for cached documents, for methods that reuse them.")
    ] = None,
    cache_memory: Annotated[
        str | None, typer.Option(help="Memory for cached documents, such as 4GB. Default: 2GB with --cache, else none.")
    ] = None,
    separator: Separator = "",
    on_missing: OnMissing = "warn",
    max_batch: Annotated[int, whole(COUNTS, "Requests per padded batch.")] = 8,
    max_batch_tokens: Annotated[int, whole(TOKENS, "Tokens per padded batch, padding included.")] = 65_536,
    max_streams: Annotated[int, whole(COUNTS, "Streamed answers at the same time.")] = 4,
    max_waiting: Annotated[int, whole(COUNTS, "Requests that may wait.")] = 256,
    max_documents: MaxDocuments = 1_000,
    max_new_tokens: Annotated[
        int | None, whole(TOKENS, "Tokens that a request may ask for. Default: the model's window.")
    ] = None,
    max_body_mb: MaxBody = 4,
    grace_seconds: Grace = 30,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="local: one process; ray: replicas on Ray Serve.")
    ] = "local",
    replicas: Annotated[int, whole(REPLICAS, "Replicas on Ray Serve.")] = 1,
    max_replicas: Annotated[int | None, whole(REPLICAS, "Let Ray Serve scale up to this many. Default: off.")] = None,
    replica_cpus: Annotated[int, whole(COUNTS, "Cores per replica.")] = 1,
    replica_gpus: Annotated[int, whole(Bounds(0, 1_000), "GPUs per replica.")] = 0,
) -> None:
    """Serve a model behind OpenAI's API and run a method on the documents of requests.

    Routes: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /health, /ready, /metrics, /docs.
    """
    required_all("serve")
    from ragbias import methods
    from ragbias.serving.app import create_app
    from ragbias.serving.local_engine import LocalEngine, ModelSettings
    from ragbias.serving.server import serve as run
    from ragbias.serving.settings import ServerSettings
    from ragbias.serving.telemetry import Metrics, log_to_stderr

    if (model is None) == (named is None):
        raise typer.BadParameter("name one model, as the argument or with --model, such as `ragbias serve smollm2`")
    name = model or named or ""
    settings = ServerSettings(
        api_key=api_key,
        max_body_bytes=max_body_mb * 2**20,
        max_documents=max_documents,
        max_new_tokens=max_new_tokens,
        max_waiting=max_waiting,
        max_batch=max_batch,
        max_batch_tokens=max_batch_tokens,
        max_streams=max_streams,
        strict=strict,
        grace_seconds=grace_seconds,
        on_missing=on_missing,
        separator=separator,
    )
    chosen = ModelSettings(
        model=name,
        name=served_name,
        method=method,
        dtype=dtype,
        device=device,
        strip_numbering=strip_numbering,
        cache=None if cache is None else str(cache.resolve()),
        cache_memory=cache_memory,
    )
    methods.get(method, name)  # refuse a wrong method or cache before loading
    chosen.document_cache()
    quiet_libraries()
    log_to_stderr()
    if engine == "local":
        metrics = Metrics()
        local = LocalEngine(chosen.load, settings, metrics)
        run(create_app(local, settings, metrics), settings, host, port, local.load)
        return
    required("ray.serve", "serve-ray")
    from ragbias.serving import ray_serve

    replicated = ray_serve.ReplicatedModel(
        **chosen.model_dump(),
        replicas=replicas,
        min_replicas=replicas,
        max_replicas=max_replicas,
        num_cpus=replica_cpus,
        num_gpus=replica_gpus,
    )
    ray_serve.run(ray_serve.Cluster(models=[replicated], settings=settings), host, port)
