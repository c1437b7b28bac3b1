"""``ragbias serve``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragbias.checks import Bounds
from ragbias.cli.numeric import whole
from ragbias.cli.terminal import MODELS, quiet_libraries
from ragbias.extras import required, required_all

if TYPE_CHECKING:
    from ragbias.lm import DebiasedLM

ENGINES = ("local", "ray")
PORTS = Bounds(0, 65_535)
COUNTS = Bounds(1, 1_000_000)
TOKENS = Bounds(1, 10_000_000)
MEGABYTES = Bounds(1, 2_000)
SECONDS = Bounds(0, 86_400)
REPLICAS = Bounds(1, 10_000)


def serve(
    model: Annotated[str | None, typer.Argument(help=MODELS)] = None,
    named: Annotated[str | None, typer.Option("--model", help="The same as the argument.")] = None,
    method: Annotated[str, typer.Option(help="Of requests that name none, see `ragbias methods`.")] = "pine",
    served_name: Annotated[str | None, typer.Option(help="What clients call the model. Default: its name.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, whole(PORTS, "Port to listen on; 0 for any that is free.")] = 8000,
    api_key: Annotated[
        str, typer.Option(envvar="RAGBIAS_API_KEY", help="What requests have to bring. Better in the variable.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="Of the weights: auto, float32, bfloat16, float16.")] = "auto",
    device: Annotated[
        str | None, typer.Option(help="Where the model goes, e.g. cuda. Default: a GPU if there is one.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="No padded batches: bits depend on one request alone.")
    ] = False,
    strip_numbering: Annotated[
        bool, typer.Option("--strip-numbering", help="Take the documents' numbers out.")
    ] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Keep documents in this folder, for methods with reusable ones.")
    ] = None,
    cache_memory: Annotated[
        str | None,
        typer.Option(help="Memory for kept documents, e.g. 4GB. Default: 2GB with --cache, else none."),
    ] = None,
    separator: Annotated[str, typer.Option(help="Parts the documents of prompts that do not name theirs.")] = "",
    on_missing: Annotated[str, typer.Option(help="A method misses its documents: warn, raise or ignore.")] = "warn",
    max_batch: Annotated[int, whole(COUNTS, "Requests of one padded batch.")] = 8,
    max_batch_tokens: Annotated[int, whole(TOKENS, "Tokens of one padded batch, padding included.")] = 65_536,
    max_streams: Annotated[int, whole(COUNTS, "Streamed answers at the same time.")] = 4,
    max_waiting: Annotated[int, whole(COUNTS, "Requests that may wait.")] = 256,
    max_documents: Annotated[int, whole(COUNTS, "Documents of one request.")] = 1_000,
    max_new_tokens: Annotated[
        int | None, whole(TOKENS, "That a request may ask for. Default: the model's window.")
    ] = None,
    max_body_mb: Annotated[int, whole(MEGABYTES, "Megabytes of one request.")] = 4,
    grace_seconds: Annotated[int, whole(SECONDS, "For what runs when the server ends.")] = 30,
    engine: Annotated[str, typer.Option(help="local: one process; ray: replicas on Ray Serve.")] = "local",
    replicas: Annotated[int, whole(REPLICAS, "Of the model, on Ray Serve.")] = 1,
    max_replicas: Annotated[
        int | None, whole(REPLICAS, "Let Ray Serve add replicas up to so many. Default: none.")
    ] = None,
    replica_cpus: Annotated[int, whole(COUNTS, "Cores of each replica.")] = 1,
    replica_gpus: Annotated[int, whole(Bounds(0, 1_000), "GPUs of each replica.")] = 0,
) -> None:
    """Serve a model behind OpenAI's API: the documents of a request are treated by a method.

    Paths: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /health, /ready, /metrics, /docs.
    """
    required_all("serve")
    from ragbias import methods
    from ragbias.serving.loading import document_cache, load_served
    from ragbias.serving.logs import to_stderr
    from ragbias.serving.server import serve as run
    from ragbias.serving.settings import ServerSettings

    if (model is None) == (named is None):
        raise typer.BadParameter("name one model, as the argument or by --model, e.g. `ragbias serve smollm2`")
    if engine not in ENGINES:
        raise typer.BadParameter(f"--engine {engine}; expected {' or '.join(ENGINES)}")
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
    methods.get(method, name)  # told before anything is loaded
    kept = document_cache(cache, cache_memory)
    quiet_libraries()
    to_stderr()
    if engine == "ray":
        required("ray.serve", "serve-ray")
        from ragbias.serving import ray_serve

        replicated = ray_serve.ReplicatedModel(
            model=name,
            name=served_name,
            method=method,
            dtype=dtype,
            device=device,
            strip_numbering=strip_numbering,
            cache=None if cache is None else str(cache.resolve()),
            cache_memory=cache_memory,
            replicas=replicas,
            min_replicas=replicas,
            max_replicas=max_replicas,
            num_cpus=replica_cpus,
            num_gpus=replica_gpus,
        )
        ray_serve.run(ray_serve.Cluster(models=[replicated], settings=asdict(settings)), host, port)
        return

    def load() -> dict[str, DebiasedLM]:
        return {served_name or name: load_served(name, method, dtype, device, strip_numbering, kept)}

    run(load, settings, host, port)
