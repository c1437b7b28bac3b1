"""Lines of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator

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
