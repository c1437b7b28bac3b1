"""Server-sent events, as they are read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx


async def event_lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a response, without their ends.

    httpx's own also end at U+2028 and U+0085, which may stand in a JSON text as they are.
    """
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


def event_of(line: bytes) -> dict[str, Any] | None:
    """The JSON in a line of server-sent events; ``None`` where it holds none, as ``data: [DONE]``."""
    found: dict[str, Any] | None = json.loads(line[6:]) if line.startswith(b"data: {") else None
    return found
