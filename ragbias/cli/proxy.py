"""``ragbias proxy``."""

from __future__ import annotations

from typing import Annotated

import typer

from ragbias.checks import Bounds
from ragbias.cli.numeric import whole
from ragbias.cli.serve import ApiKey, Grace, Host, MaxBody, MaxDocuments, OnMissing, Port, Separator, StripNumbering
from ragbias.extras import required_all


def proxy(
    upstream: Annotated[str, typer.Option(help="Address of an OpenAI-compatible server: vLLM, Ollama, a hosted one.")],
    method: Annotated[
        str, typer.Option(help="Default method: canonical-order, long-context-reorder or none.")
    ] = "canonical-order",
    host: Host = "127.0.0.1",
    port: Port = 8001,
    api_key: ApiKey = "",
    upstream_key: Annotated[
        str, typer.Option(envvar="RAGBIAS_UPSTREAM_KEY", help="Key for the upstream server. Default: the client's.")
    ] = "",
    separator: Separator = "",
    strip_numbering: StripNumbering = False,
    on_missing: OnMissing = "warn",
    max_documents: MaxDocuments = 1_000,
    max_body_mb: MaxBody = 4,
    timeout: Annotated[int, whole(Bounds(1, 86_400), "Seconds without a byte from the upstream server.")] = 600,
    grace_seconds: Grace = 30,
) -> None:
    """Arrange the documents of requests in front of any OpenAI-compatible server.

    Supports methods that only arrange text, and needs no model. Embeddings and similar routes are passed on unchanged.
    """
    required_all("serve")
    from ragbias.serving.proxy import Upstream, create_proxy
    from ragbias.serving.server import serve
    from ragbias.serving.settings import ServerSettings
    from ragbias.serving.telemetry import Metrics, log_to_stderr

    settings = ServerSettings(
        api_key=api_key,
        max_body_bytes=max_body_mb * 2**20,
        max_documents=max_documents,
        grace_seconds=grace_seconds,
        on_missing=on_missing,
        separator=separator,
        strip_numbering=strip_numbering,
    )
    app = create_proxy(Upstream(upstream, upstream_key, not api_key, timeout), method, settings, Metrics())
    log_to_stderr()
    serve(app, settings, host, port)
