"""The settings of the server and of the proxy. Their defaults are the defaults of the commands' options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ragbias import limits
from ragbias.checks import Bounds


@dataclass(frozen=True)
class ServerSettings:
    """Limits, batching and other settings of a server. The command line and ``ray_serve.Cluster`` check the values."""

    __pydantic_config__ = {"extra": "forbid", "revalidate_instances": "always"}  # for ``ray_serve.Cluster``

    api_key: str = field(default="", repr=False)  # one key per line for several tenants
    share_cache: bool = False  # whether tenants share cached documents
    tenant_header: str = ""  # header with the tenant's name, set by a gateway
    max_body_bytes: Annotated[int, Bounds(1, limits.MEGABYTES.most * 2**20)] = 4 * 2**20
    max_documents: Annotated[int, limits.COUNTS] = 1_000
    max_new_tokens: Annotated[int, limits.TOKENS] | None = None  # None: only the context window limits it
    max_waiting: Annotated[int, limits.COUNTS] = 256  # queued requests
    max_connections: Annotated[int, limits.COUNTS] = 1_000  # at most half of the process's limit of open files
    max_batch: Annotated[int, limits.COUNTS] = 8  # 1 gives bit-identical answers
    max_batch_tokens: Annotated[int, limits.TOKENS] = 65_536  # including padding and new tokens
    batch_wait_ms: Annotated[int, Bounds(0, 60_000)] = 5  # time that a batch waits for more requests
    max_streams: Annotated[int, limits.COUNTS] = 4  # streams that run in parallel to a batch
    grace_seconds: Annotated[int, limits.SECONDS] = 30
    on_missing: limits.OnMissing = "warn"
    separator: str = ""  # between documents, for requests without `documents`
    segmenter: re.Pattern[str] | None = None  # matches a document; replaces the separator


@dataclass(frozen=True)
class ProxySettings(ServerSettings):
    """Settings of the proxy. It accepts more requests by default, because another server runs the model."""

    max_waiting: Annotated[int, limits.COUNTS] = 1_000
    max_streams: Annotated[int, limits.COUNTS] = 256
    strip_numbering: bool = False


@dataclass(frozen=True)
class UpstreamModel:
    """The upstream server of a proxy. ``model`` is needed only if the proxy reuses documents in this server."""

    url: str = field(repr=False)  # may contain a password
    method: str  # of requests that name none
    model: str = ""  # folder or name of tokenizer and configuration; empty: the path that the server reports
    reader: str = ""  # reader adapter in the server, for requests with the default method
    key: str = field(default="", repr=False)  # API key of the server
    timeout: float = 600.0  # maximum number of seconds to wait for the next byte
    cache: Path | None = None  # the connector's folder, for rotor; the proxy then also loads the weights
    cache_disk: str | None = None  # maximum size of this folder
    dtype: str = "auto"  # of the weights in the server
