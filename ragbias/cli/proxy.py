"""``ragbias proxy``."""

from __future__ import annotations

from typing import Annotated

import typer

from ragbias.checks import Bounds
from ragbias.cli.numeric import whole
from ragbias.cli.serve import COUNTS, MEGABYTES, PORTS, SECONDS
from ragbias.extras import required_all


def proxy(
    upstream: Annotated[str, typer.Option(help="Address of an OpenAI-compatible server: vLLM, Ollama, a hosted one.")],
    method: Annotated[
        str, typer.Option(help="Of requests that name none: canonical-order, long-context-reorder or none.")
    ] = "canonical-order",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, whole(PORTS, "Port to listen on; 0 for any that is free.")] = 8001,
    api_key: Annotated[
        str, typer.Option(envvar="RAGBIAS_API_KEY", help="What requests have to bring. Better in the variable.")
    ] = "",
    upstream_key: Annotated[
        str, typer.Option(envvar="RAGBIAS_UPSTREAM_KEY", help="Sent upstream. Default: what the client sends.")
    ] = "",
    separator: Annotated[str, typer.Option(help="Parts the documents of prompts that do not name theirs.")] = "",
    strip_numbering: Annotated[bool, typer.Option("--strip-numbering", help="Take documents' numbers out.")] = False,
    on_missing: Annotated[str, typer.Option(help="No documents are found: warn, raise or ignore.")] = "warn",
    max_documents: Annotated[int, whole(COUNTS, "Documents of one request.")] = 1_000,
    max_body_mb: Annotated[int, whole(MEGABYTES, "Megabytes of one request.")] = 4,
    timeout: Annotated[int, whole(Bounds(1, 86_400), "Seconds without a byte of the upstream server.")] = 600,
    grace_seconds: Annotated[int, whole(SECONDS, "For what runs when the proxy ends.")] = 30,
) -> None:
    """Arrange the documents of requests in front of any OpenAI-compatible server.

    For methods that only arrange text. Needs no model; what is not a completion is passed on as it is.
    """
    required_all("serve")
    from ragbias.serving.logs import log, to_stderr
    from ragbias.serving.metrics import Metrics
    from ragbias.serving.proxy import Upstream, create_proxy
    from ragbias.serving.server import listening, run
    from ragbias.serving.settings import ServerSettings

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
    to_stderr()
    listener = listening(host, port)
    log("listening", host=host, port=listener.getsockname()[1], upstream=upstream)
    run(app, listener, settings)
