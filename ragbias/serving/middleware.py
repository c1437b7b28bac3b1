"""Around every request: its id, the key, the size of its body, one line of the log, and the counters."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbias.serving.errors import ApiError, internal
from ragbias.serving.logs import log
from ragbias.serving.metrics import Metrics
from ragbias.serving.settings import ServerSettings

OPEN = ("/health", "/ready", "/metrics")  # without a key: they tell nothing of any request
QUIET = OPEN  # asked every few seconds, and not worth a line
SECONDS_FOR_BODY = 60.0
GONE = 499  # the client left; as nginx counts it
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")  # may be half of a character
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Guard:
    """Refuses requests without the key and bodies that are too large, and notes all of them.

    What a route adds to ``scope["state"]["log_fields"]`` stands in the line of the log; it holds no text of a prompt.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._key = settings.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        fields: dict[str, Any] = {"request_id": given if _ID.fullmatch(given) else uuid.uuid4().hex}
        scope.setdefault("state", {})["log_fields"] = fields
        begin, status = time.perf_counter(), GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = fields["request_id"]
            await send(message)

        try:
            self._check_key(scope["path"], headers)
            await self._app(scope, await self._with_body(headers, receive), noted)
        except ApiError as error:
            fields["code"] = error.code
            await JSONResponse(error.as_dict(), error.status, error.headers())(scope, receive, noted)
        except Exception as error:
            log("failed", logging.ERROR, error, request_id=fields["request_id"])
            if status != GONE:  # the response has begun
                raise
            await JSONResponse(internal(fields["request_id"]).as_dict(), 500)(scope, receive, noted)
        finally:
            self._note(scope, fields.pop("status", status), time.perf_counter() - begin, fields)

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self._key or path in OPEN:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode("latin-1"), self._key):
            raise ApiError(
                401, "wrong or missing API key; send it as `Authorization: Bearer KEY`", None, "invalid_api_key"
            )

    async def _with_body(self, headers: Headers, receive: Receive) -> Receive:
        """Reads the body, and gives what replays it and then tells of a disconnect."""
        most = self._settings.max_body_bytes
        declared = headers.get("content-length", "0")
        too_large = ApiError(413, f"the body is larger than {most:,} bytes", None, "body_too_large")
        if declared.isdigit() and int(declared) > most:
            raise too_large
        body = bytearray()

        async def read() -> None:
            more = True
            while more:
                message = await receive()
                body.extend(message.get("body", b""))
                more = message.get("more_body", False)
                if len(body) > most:
                    raise too_large

        try:
            await asyncio.wait_for(read(), SECONDS_FOR_BODY)
        except asyncio.TimeoutError:
            raise ApiError(408, f"the body did not come within {SECONDS_FOR_BODY:g} seconds") from None
        if _HALF_PAIR.search(body):
            _check_characters(bytes(body))
        replayed = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return replayed.pop() if replayed else await receive()

        return replay

    def _note(self, scope: Scope, status: int, seconds: float, fields: dict[str, Any]) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "other")  # of the route, so that clients make up no labels
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        if status == GONE:
            self._metrics.disconnects.inc()
        if path not in QUIET:
            level = logging.ERROR if status >= 500 else logging.INFO
            log("request", level, method=scope["method"], path=path, status=status, seconds=round(seconds, 4), **fields)


def _check_characters(body: bytes) -> None:
    """Raise a 400 for half of a surrogate pair, which Python's reader lets through and no tokenizer takes."""
    try:
        from_json(body)
    except ValueError as error:
        raise ApiError(400, f"the body is no valid JSON: {error}") from error
