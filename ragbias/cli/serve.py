"""``ragbias serve`` and ``ragbias proxy``."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Literal

import typer

from ragbias import limits
from ragbias.checks import Bounds
from ragbias.cli.terminal import MODELS, integer, quiet_libraries, select_fields
from ragbias.errors import MissingExtraError
from ragbias.extras import install_command, require, require_all
from ragbias.methods import DEFAULT_METHOD
from ragbias.models.named import no_model_message
from ragbias.serving.settings import ProxySettings, ServerSettings, UpstreamModel

PORTS = Bounds(0, 65_535)
REPLICAS = Bounds(1, 10_000)


def _compile_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"{text!r} is not a regular expression: {error}") from error


Host = Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0: all addresses.")]
Port = Annotated[int, integer(PORTS, "Port to listen on. 0: any free port.")]
ApiKey = Annotated[str, typer.Option(envvar="RAGBIAS_API_KEY", help="API key, or several keys, one per line.")]
Separator = Annotated[str, typer.Option(help="Text between documents, for requests without `documents`.")]
Segmenter = Annotated[
    re.Pattern[str] | None,
    typer.Option(parser=_compile_pattern, metavar="REGEX", help="Pattern of a document, such as '(?s)<doc>.*?</doc>'."),
]
StripNumbering = Annotated[bool, typer.Option("--strip-numbering", help="Remove document numbers.")]
OnMissing = Annotated[limits.OnMissing, typer.Option(help="What to do if a method finds no documents.")]
ShareCache = Annotated[bool, typer.Option("--share-cache", help="Let all API keys and tenants share cached documents.")]
TenantHeader = Annotated[
    str, typer.Option(help="Header with the tenant's name, set by your gateway. Tenants share no cached documents.")
]
MaxStreams = Annotated[int, integer(limits.COUNTS, "Maximum concurrent streams. In the proxy, only for pcw and rotor.")]
MaxWaiting = Annotated[int, integer(limits.COUNTS, "Maximum waiting requests. In the proxy, only for pcw and rotor.")]
MaxDocuments = Annotated[int, integer(limits.COUNTS, "Maximum documents per request.")]
MaxNewTokens = Annotated[int | None, integer(limits.TOKENS, "Maximum new tokens per request. Default: the window.")]
MaxBody = Annotated[int, integer(limits.MEGABYTES, "Maximum megabytes of a request.")]
MaxConnections = Annotated[int, integer(limits.COUNTS, "Open connections, at most half of the limit of open files.")]
Grace = Annotated[int, integer(limits.SECONDS, "Seconds for running requests to finish at shutdown.")]


def serve(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help=MODELS)] = None,
    named: Annotated[str | None, typer.Option("--model", help="Same as the argument MODEL.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            envvar="RAGBIAS_METHOD",
            help=f"Method of requests that name none. Default: {DEFAULT_METHOD}, or the best for the model.",
        ),
    ] = None,
    reader: Annotated[str, typer.Option(help="Folder of a reader adapter for the method, see `ragbias adapt`.")] = "",
    served_name: Annotated[str | None, typer.Option(help="Model name that clients use. Default: MODEL.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = ServerSettings.api_key,
    dtype: Annotated[str, typer.Option(help="Dtype of the weights: auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str | None, typer.Option(help="Device, such as cuda. Default: a GPU if there is one.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Run each request alone, for bit-identical answers.")
    ] = False,
    strip_numbering: StripNumbering = False,
    cache: Annotated[Path | None, typer.Option(help="Folder for cached documents.")] = None,
    cache_memory: Annotated[
        str | None, typer.Option(help="Memory for cached documents, such as 4GB. Default: 2GB with --cache, else none.")
    ] = None,
    share_cache: ShareCache = ServerSettings.share_cache,
    tenant_header: TenantHeader = ServerSettings.tenant_header,
    separator: Separator = ServerSettings.separator,
    segmenter: Segmenter = ServerSettings.segmenter,
    on_missing: OnMissing = ServerSettings.on_missing,
    max_batch: Annotated[int, integer(limits.COUNTS, "Requests per padded batch.")] = ServerSettings.max_batch,
    max_batch_tokens: Annotated[
        int, integer(limits.TOKENS, "Tokens per padded batch, padding included.")
    ] = ServerSettings.max_batch_tokens,
    max_streams: MaxStreams = ServerSettings.max_streams,
    max_waiting: MaxWaiting = ServerSettings.max_waiting,
    max_documents: MaxDocuments = ServerSettings.max_documents,
    max_new_tokens: MaxNewTokens = ServerSettings.max_new_tokens,
    max_body_mb: MaxBody = ServerSettings.max_body_bytes // 2**20,
    max_connections: MaxConnections = ServerSettings.max_connections,
    grace_seconds: Grace = ServerSettings.grace_seconds,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="One process, or replicas on Ray Serve.")] = "local",
    replicas: Annotated[int, integer(REPLICAS, "Replicas on Ray Serve.")] = 1,
    max_replicas: Annotated[int | None, integer(REPLICAS, "Maximum number of replicas. Default: no scaling.")] = None,
    replica_cpus: Annotated[int, integer(limits.COUNTS, "Cores per replica.")] = 1,
    replica_gpus: Annotated[int, integer(Bounds(0, 1_000), "GPUs per replica.")] = 0,
) -> None:
    """Serve a model with OpenAI's API and apply a method to the documents of requests.

    Routes: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /health, /ready, /metrics, /docs.
    """
    options = {**context.params, "max_body_bytes": max_body_mb * 2**20, "cache": cache and str(cache.resolve())}
    options["max_batch"] = 1 if strict else max_batch
    require_all("serve")
    from ragbias.serving.app import create_app
    from ragbias.serving.local_engine import local_engine
    from ragbias.serving.models import ModelSettings
    from ragbias.serving.run import serve as run
    from ragbias.serving.server import Metrics, log_to_stderr

    if (model is None) == (named is None):
        raise typer.BadParameter(
            no_model_message("`ragbias serve smollm2`") if model is None else "two models are given; name only one"
        )
    name = model or named or ""
    settings = ServerSettings(**select_fields(ServerSettings, options))
    chosen = ModelSettings(**select_fields(ModelSettings, {**options, "model": name, "name": served_name}))
    quiet_libraries()
    chosen.check()
    log_to_stderr()
    if engine == "local":
        metrics = Metrics()
        local = local_engine(chosen.load, settings, metrics)
        run(create_app(local, settings, metrics), settings, host, port, local.load)
        return
    require("ray.serve", "serve-ray")
    from ragbias.serving import ray_serve

    scale = {"replicas": replicas, "min_replicas": replicas, "max_replicas": max_replicas}
    fields = {**chosen.model_dump(), **scale, "num_cpus": replica_cpus, "num_gpus": replica_gpus}
    replicated = ray_serve.ReplicatedModel.model_validate(fields)
    ray_serve.run(ray_serve.Cluster(models=[replicated], settings=settings), host, port)


def proxy(
    context: typer.Context,
    upstream: Annotated[str, typer.Option(help="Address of an OpenAI-compatible server, such as vLLM or Ollama.")],
    method: Annotated[
        str, typer.Option(help="Default method: canonical-order, long-context-reorder, none; for vLLM also pcw, rotor.")
    ] = "canonical-order",
    model: Annotated[
        str,
        typer.Option(
            help="Folder or name of the model in vLLM, for pcw and rotor. Default: the path that vLLM reports."
        ),
    ] = "",
    reader: Annotated[str, typer.Option(help="Reader adapter for the method: its name in vLLM's --lora-modules.")] = "",
    cache: Annotated[Path | None, typer.Option(help="For rotor: vLLM's connector folder. Loads the weights.")] = None,
    cache_disk: Annotated[str | None, typer.Option(help="Size limit of --cache, as in vLLM's settings.")] = None,
    dtype: Annotated[str, typer.Option(help="Dtype of the weights in vLLM, for rotor.")] = "auto",
    host: Host = "127.0.0.1",
    port: Port = 8001,
    api_key: ApiKey = ProxySettings.api_key,
    share_cache: ShareCache = ProxySettings.share_cache,
    tenant_header: TenantHeader = ProxySettings.tenant_header,
    upstream_key: Annotated[
        str, typer.Option(envvar="RAGBIAS_UPSTREAM_KEY", help="Key of the upstream server. Default: the client's key.")
    ] = "",
    separator: Separator = ProxySettings.separator,
    segmenter: Segmenter = ProxySettings.segmenter,
    strip_numbering: StripNumbering = ProxySettings.strip_numbering,
    on_missing: OnMissing = ProxySettings.on_missing,
    max_streams: MaxStreams = ProxySettings.max_streams,
    max_waiting: MaxWaiting = ProxySettings.max_waiting,
    max_documents: MaxDocuments = ProxySettings.max_documents,
    max_new_tokens: MaxNewTokens = ProxySettings.max_new_tokens,
    max_body_mb: MaxBody = ProxySettings.max_body_bytes // 2**20,
    max_connections: MaxConnections = ProxySettings.max_connections,
    timeout: Annotated[int, integer(Bounds(1, 86_400), "Seconds to wait for data from the upstream server.")] = 600,
    grace_seconds: Grace = ProxySettings.grace_seconds,
) -> None:
    """Reorder the documents of requests, and forward the requests to any OpenAI-compatible server.

    Methods that only reorder text need no model. Embeddings and similar routes are forwarded unchanged. With pcw and
    rotor, vLLM reuses documents in any order. This requires ragbias's connector, see docs/how-to/vllm.md.
    """
    options = {**context.params, "max_body_bytes": max_body_mb * 2**20}
    require_all("serve")
    from ragbias import methods
    from ragbias.serving.proxy import DocumentsProxy, create_proxy
    from ragbias.serving.run import serve as run
    from ragbias.serving.server import Metrics, log_to_stderr

    settings = ProxySettings(**select_fields(ProxySettings, options))
    server = UpstreamModel(**select_fields(UpstreamModel, {**options, "url": upstream, "key": upstream_key}))
    chosen = methods.get(method)
    load: Callable[[], None] | None = None
    if reader or cache or cache_disk or chosen.reusable_documents or isinstance(chosen, methods.RoToR):
        plugins = entry_points(group="ragbias.proxies", name="documents")
        if not plugins:
            command = install_command("proxy", "ragbias-vllm", "integrations/vllm")
            raise MissingExtraError(f"ragbias-vllm is not installed; install it with: {command}")
        create: DocumentsProxy = next(iter(plugins)).load()
        quiet_libraries()
        app, load = create(server, settings, Metrics())
    else:
        app = create_proxy(server, settings, Metrics())
    log_to_stderr()
    run(app, settings, host, port, load)
