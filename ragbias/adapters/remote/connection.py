"""Requests to a server, tried again where that helps, and given up as soon as nobody waits for them."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import wait
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import httpx

from ragbias.adapters.remote.events import event_lines, event_of
from ragbias.errors import (
    ArgumentError,
    CancelledError,
    DocumentNotFoundError,
    MethodError,
    OutOfMemoryError,
    PromptTooLongError,
    RagBiasError,
    ServerError,
)

TRIED_AGAIN = (408, 409, 429, 500, 502, 503, 504)  # statuses that may go better, as OpenAI's client has them
LONGEST_WAIT = 60.0  # seconds before another try
SECONDS_BETWEEN_LOOKS = 0.05  # at whether somebody still waits
AT_ONCE = 64  # requests of one call, fewer than a server lets wait by default
ERRORS: dict[str, type[RagBiasError]] = {  # by the server's code
    "context_length_exceeded": PromptTooLongError,
    "invalid_method": MethodError,
    "invalid_documents": DocumentNotFoundError,
    "out_of_memory": OutOfMemoryError,
}
T = TypeVar("T")


class Connection:
    """Talks to one server; may be used by several threads at once.

    Args:
        base_url: with or without ``/v1``.
        api_key: sent with every request, if it is not empty.
        timeout: seconds without a byte, after which a request has failed; ``None``: no end.
        max_retries: how often a request is tried again.
    """

    def __init__(self, base_url: str, api_key: str, timeout: float | None, max_retries: int) -> None:
        self.base_url = server_address("base_url", base_url)
        self._retries = max_retries
        headers = {b"authorization": f"Bearer {api_key}".encode()} if api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._settings: dict[str, Any] = dict(base_url=self.base_url, headers=headers, timeout=timeout, limits=limits)
        self._made: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    def _client(self) -> httpx.AsyncClient:
        """The client of this process' event loop: a forked process must not use its parent's connections."""
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            self._made = loop, httpx.AsyncClient(**self._settings)
        return self._made[1]

    def get(self, path: str) -> dict[str, Any]:
        """The JSON at a path."""
        return run(self._whole("GET", path, None))

    def model(self, name: str | None) -> dict[str, Any]:
        """What the server says of a model; ``None``: of its only one.

        Raises:
            ServerError: it has no such model; or none or several, where it has to be the only one.
        """
        listed = self.get("/v1/models").get("data")
        cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
        known = ", ".join(str(card.get("id")) for card in cards)
        if name is None and len(cards) != 1:
            raise ServerError(f"{self.base_url} has {len(cards)} models ({known}); name one")
        for card in cards:
            if name in (None, card.get("id")):
                return card
        raise ServerError(f"{self.base_url} has no model {name!r}; there: {known or 'none'}")

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON answer to a body."""
        return run(self._whole("POST", path, body))

    def post_all(
        self, paths: list[str], bodies: list[dict[str, Any]], cancelled: threading.Event | None
    ) -> list[dict[str, Any]]:
        """The answers to several bodies, asked at the same time as far as a server lets them wait.

        After an error the others are given up.
        """

        async def together() -> list[dict[str, Any]]:
            places = asyncio.Semaphore(AT_ONCE)

            async def one(path: str, body: dict[str, Any]) -> dict[str, Any]:
                async with places:
                    return await self._whole("POST", path, body)

            tasks = [asyncio.ensure_future(one(*pair)) for pair in zip(paths, bodies, strict=True)]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()

        return run(together(), cancelled)

    def events(
        self, path: str, body: dict[str, Any], see: Callable[[dict[str, Any]], None], cancelled: threading.Event
    ) -> None:
        """Show the events of a streamed answer to ``see``, one after the other."""

        async def follow() -> None:
            async with self._response("POST", path, body) as response:
                async for line in event_lines(response):
                    if (event := event_of(line)) is None:
                        continue
                    if "error" in event:
                        raise _error_of(event, response.status_code, self.base_url)
                    see(event)

        with suppress(CancelledError):
            run(self._translated(follow()), cancelled)

    async def _whole(self, verb: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        async def read() -> dict[str, Any]:
            async with self._response(verb, path, body) as response:
                await response.aread()
                found: dict[str, Any] = response.json()
                return found

        return await self._translated(read())

    async def _translated(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``; what goes wrong on the way is an error of the library."""
        try:
            return await work
        except httpx.HTTPError as error:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            raise ServerError(
                f"{self.base_url} does not answer ({what}); is it running, and is timeout long enough?"
            ) from error
        except ValueError as error:
            raise ServerError(f"{self.base_url} answers with something that is no JSON ({error})") from error

    @asynccontextmanager
    async def _response(self, verb: str, path: str, body: dict[str, Any] | None) -> AsyncIterator[httpx.Response]:
        """A response that is no error; what is sent again is sent before any of it was read."""
        for tries_left in range(self._retries, -1, -1):
            client = self._client()
            request = client.build_request(verb, path, json=body)
            try:
                response = await client.send(request, stream=True)
            except httpx.TransportError:
                if not tries_left:
                    raise
                await asyncio.sleep(_wait(self._retries - tries_left, None))
                continue
            try:
                if response.is_success:
                    yield response
                    return
                await response.aread()
                if response.status_code not in TRIED_AGAIN or not tries_left:
                    raise _error_of(_json(response), response.status_code, self.base_url)
            finally:
                await response.aclose()
            await asyncio.sleep(_wait(self._retries - tries_left, response.headers.get("retry-after")))


def server_address(name: str, given: str) -> str:
    """The address of a server, without the path of its API.

    Raises:
        ArgumentError: ``given`` is no address.
    """
    if not isinstance(given, str) or not given.startswith(("http://", "https://")):
        raise ArgumentError(f"{name}={given!r}; expected an address, e.g. 'http://127.0.0.1:8000'")
    return given.rstrip("/").removesuffix("/v1")


def _wait(attempt: int, retry_after: str | None) -> float:
    """Seconds before another try: what the server says, else twice as long each time, and not all at once."""
    if retry_after is not None and retry_after.isdigit():
        return min(float(retry_after), LONGEST_WAIT)
    return float(min(0.5 * 2**attempt, 8.0) * random.uniform(0.75, 1.0))


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return {}


def _error_of(body: Any, status: int, base_url: str) -> RagBiasError:
    """The error in the body of a response, as one of the library."""
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    message = str(error.get("message") or f"status {status} without a reason")
    kind = ERRORS.get(str(error.get("code")))
    if kind is not None:
        return kind(message)
    if status == 400 and error:
        return ArgumentError(f"{error.get('param') or 'request'}: {message}")
    if status == 401:
        message += "; give api_key=, or set RAGBIAS_API_KEY"
    return ServerError(f"{base_url} refuses with status {status}: {message}")


# one event loop for all connections of this process, so that a request can be given up from any thread


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="ragbias-remote").start()
    return loop


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_loop.cache_clear)  # its thread stays with the parent


def run(work: Coroutine[Any, Any, T], cancelled: threading.Event | None = None) -> T:
    """The result of ``work``.

    Raises:
        CancelledError: ``cancelled`` was set meanwhile; the request is given up, and the server stops computing.
    """
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        while not wait([future], None if cancelled is None else SECONDS_BETWEEN_LOOKS).done:
            if cancelled is not None and cancelled.is_set():
                raise CancelledError("the request was cancelled before its answer was there")
        return future.result()
    finally:
        future.cancel()
