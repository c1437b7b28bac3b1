"""Requests to an OpenAI-compatible server through the ``openai`` package; any thread may cancel them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import httpx

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
from ragbias.extras import required

Json = dict[str, Any]
POLL_SECONDS = 0.05  # between checks for cancellation
MAX_PARALLEL = 64  # requests of one call; servers queue more than that by default
ERRORS: dict[str, type[RagBiasError]] = {  # by the server's error code
    "context_length_exceeded": PromptTooLongError,
    "invalid_method": MethodError,
    "invalid_documents": DocumentNotFoundError,
    "out_of_memory": OutOfMemoryError,
}
T = TypeVar("T")


class Connection:
    """Talks to one server; threads may share it.

    Args:
        base_url: address, with or without ``/v1``.
        api_key: sent with every request unless it is empty.
        timeout: seconds without a byte until a request fails; ``None``: no limit.
        max_retries: retries after connection errors and statuses such as 429 and 503.

    Raises:
        ArgumentError: ``base_url`` is not an address.
        MissingExtraError: ``openai`` is not installed.
    """

    def __init__(self, base_url: str, api_key: str, timeout: float | None, max_retries: int) -> None:
        self.base_url = server_address("base_url", base_url)
        self._openai: Any = required("openai", "remote")
        self._settings: Json = dict(
            base_url=f"{self.base_url}/v1", api_key=api_key or "none", timeout=timeout, max_retries=max_retries
        )
        self._made: tuple[asyncio.AbstractEventLoop, Any] | None = None

    def model(self, name: str | None) -> Json:
        """The server's description of a model; ``None``: of its only one.

        Raises:
            ServerError: there is no such model, or not exactly one.
        """
        listed = self._run(self._request("get", "/v1/models")).get("data")
        cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
        known = ", ".join(str(card.get("id")) for card in cards)
        if name is None and len(cards) != 1:
            raise ServerError(f"{self.base_url} has {len(cards)} models ({known}); name one")
        for card in cards:
            if name in (None, card.get("id")):
                return card
        raise ServerError(f"{self.base_url} has no model {name!r}; there: {known or 'none'}")

    def post(self, path: str, body: Json) -> Json:
        """The JSON answer to a body."""
        answer: Json = self._run(self._request("post", path, body=body))
        return answer

    def post_all(self, paths: list[str], bodies: list[Json], cancelled: threading.Event | None) -> list[Json]:
        """The answers to several bodies, sent in parallel; an error cancels the others.

        Raises:
            CancelledError: ``cancelled`` was set; the server stops computing.
        """

        places = asyncio.Semaphore(MAX_PARALLEL)

        async def one(path: str, body: Json) -> Any:
            async with places:
                return await self._request("post", path, body=body)

        async def every() -> list[Json]:
            tasks = [asyncio.ensure_future(one(*pair)) for pair in zip(paths, bodies, strict=True)]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()

        return self._run(every(), cancelled)

    def events(self, path: str, body: Json, see: Callable[[Json], None], cancelled: threading.Event) -> None:
        """Pass the events of a streamed answer to ``see``; return early once ``cancelled`` is set."""

        async def follow() -> None:
            stream_class = self._openai.AsyncStream[object]
            async with await self._request("post", path, body=body, stream=True, stream_cls=stream_class) as stream:
                async for event in stream:
                    see(event)

        with suppress(CancelledError):
            self._run(follow(), cancelled)

    async def _request(self, verb: str, path: str, **settings: Any) -> Any:
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:  # a forked process needs its own connections
            self._made = loop, self._openai.AsyncOpenAI(**self._settings)
        answer = await getattr(self._made[1], verb)(f"{self.base_url}{path}", cast_to=object, **settings)
        if isinstance(answer, str):
            raise ValueError("plain text")
        return answer

    def _run(self, work: Coroutine[Any, Any, T], cancelled: threading.Event | None = None) -> T:
        """The result of ``work``; errors on the way become errors of this library."""
        future = asyncio.run_coroutine_threadsafe(work, _loop())
        try:
            while not wait([future], None if cancelled is None else POLL_SECONDS).done:
                if cancelled is not None and cancelled.is_set():
                    raise CancelledError("the request was cancelled before its answer arrived")
            return future.result()
        except (self._openai.APIConnectionError, httpx.HTTPError) as error:  # the latter inside a stream
            cause = error.__cause__ or error
            reason = f"{type(cause).__name__}: {cause}".rstrip(": ")
            message = f"{self.base_url} does not answer ({reason}); is it running, and is timeout long enough?"
            raise ServerError(message) from error
        except self._openai.APIError as error:
            raise self._refusal(error.body, getattr(error, "status_code", 200)) from error
        except ValueError as error:
            raise ServerError(f"{self.base_url} does not answer in JSON ({error})") from error
        finally:
            future.cancel()

    def _refusal(self, error: Any, status: int) -> RagBiasError:
        error = error if isinstance(error, dict) else {}
        message = str(error.get("message") or f"status {status} without a reason")
        kind = ERRORS.get(str(error.get("code")))
        if kind is not None:
            return kind(message)
        if status == 400 and error:
            return ArgumentError(f"{error.get('param') or 'request'}: {message}")
        if status == 401:
            message += "; give api_key=, or set RAGBIAS_API_KEY"
        return ServerError(f"{self.base_url} refuses with status {status}: {message}")


def server_address(name: str, given: str) -> str:
    """The address of a server without the path of its API.

    Raises:
        ArgumentError: ``given`` is not an address.
    """
    if not isinstance(given, str) or not given.startswith(("http://", "https://")):
        raise ArgumentError(f"{name}={given!r}; expected an address, e.g. 'http://127.0.0.1:8000'")
    return given.rstrip("/").removesuffix("/v1")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all connections of this process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="ragbias-remote").start()
    return loop


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_loop.cache_clear)  # the thread stays with the parent
