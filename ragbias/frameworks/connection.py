"""Send requests to an OpenAI-compatible server with the ``openai`` package. Requests can be cancelled."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from ragbias import limits
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
from ragbias.extras import require

Json = dict[str, Any]
POLL_SECONDS = 0.05  # interval between checks for cancellation
MAX_PARALLEL = 64  # maximum number of parallel requests of one call; servers queue more by default
ERRORS: dict[str, type[RagBiasError]] = {  # error classes by the server's error code
    "context_length_exceeded": PromptTooLongError,
    "invalid_method": MethodError,
    "invalid_documents": DocumentNotFoundError,
    "out_of_memory": OutOfMemoryError,
}
T = TypeVar("T")


def server_address(name: str, url: str) -> str:
    """Check the address of a server, and return it without ``/v1``. ``name`` is the name of the argument in errors."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        public = url.rpartition("@")[2] if isinstance(url, str) else url  # without a password
        raise ArgumentError(f"{name}={public!r}; expected an address, such as 'http://127.0.0.1:8000'")
    return url.rstrip("/").removesuffix("/v1")


class Connection:
    """A thread-safe client for one server. For the arguments, see ``RemoteLM``."""

    def __init__(self, base_url: str, api_key: str, timeout: float | None, max_retries: int) -> None:
        self.base_url = server_address("base_url", base_url)
        self._openai: Any = require("openai", "remote")
        self._httpx: Any = require("httpx", "remote")
        self._settings: Json = dict(
            base_url=f"{self.base_url}/v1", api_key=api_key or "none", timeout=timeout, max_retries=max_retries
        )
        self._client: tuple[asyncio.AbstractEventLoop, Any] | None = None

    def model(self, name: str | None) -> Json:
        """Return the server's description of a model. ``None`` selects the server's only model."""
        listed = self._run(self._request("get", "/v1/models")).get("data")
        cards = {str(card.get("id")): card for card in listed or () if isinstance(card, dict)}
        if name is None and len(cards) != 1:
            raise ServerError(f"{self.base_url} has {len(cards)} models ({', '.join(cards)}); name one")
        if name is not None and name not in cards:
            raise ServerError(f"{self.base_url} has no model {name!r}; its models: {', '.join(cards) or 'none'}")
        return next(iter(cards.values())) if name is None else cards[name]

    def post_all(self, paths: list[str], bodies: list[Json], cancelled: threading.Event | None = None) -> list[Json]:
        """Send requests in parallel and return the answers. An error cancels the remaining requests."""
        limit = asyncio.Semaphore(MAX_PARALLEL)

        async def post(path: str, body: Json) -> Any:
            async with limit:
                return await self._request("post", path, body=body)

        async def post_each() -> list[Json]:
            tasks = [asyncio.ensure_future(post(*pair)) for pair in zip(paths, bodies, strict=True)]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()

        return self._run(post_each(), cancelled)

    def read_events(self, path: str, body: Json, on_event: Callable[[Json], None], cancelled: threading.Event) -> None:
        """Pass the events of a streamed answer to ``on_event``. The stream ends early if ``cancelled`` is set."""

        async def read_stream() -> None:
            stream_class = self._openai.AsyncStream[object]
            async with await self._request("post", path, body=body, stream=True, stream_cls=stream_class) as stream:
                async for event in stream:
                    on_event(event)

        with suppress(CancelledError):
            self._run(read_stream(), cancelled)

    async def _request(self, verb: str, path: str, **settings: Any) -> Any:
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:  # a forked process needs its own connections
            uncompressed = {"accept-encoding": "identity"}
            hooks = {"response": [self._check_size]}
            client = self._openai.DefaultAsyncHttpxClient(headers=uncompressed, event_hooks=hooks)
            self._client = loop, self._openai.AsyncOpenAI(http_client=client, **self._settings)
        answer = await getattr(self._client[1], verb)(f"{self.base_url}{path}", cast_to=object, **settings)
        if isinstance(answer, str):
            raise ValueError("plain text")
        return answer

    async def _check_size(self, response: Any) -> None:
        """Raise an error for an answer that is too large, or whose size is unknown because it is compressed."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ServerError(f"{self.base_url} compresses answers, despite the header 'Accept-Encoding: identity'")
        if int(response.headers.get("content-length", 0)) > limits.ANSWER_BYTES:
            raise ServerError(f"{response.url} answers with more than {limits.ANSWER_BYTES:,} bytes")

    def _run(self, work: Coroutine[Any, Any, T], cancelled: threading.Event | None = None) -> T:
        """Run ``work`` on the shared event loop and return its result. Convert errors to those of this library."""
        future = asyncio.run_coroutine_threadsafe(work, _loop())
        try:
            while not wait([future], None if cancelled is None else POLL_SECONDS).done:
                if cancelled is not None and cancelled.is_set():
                    raise CancelledError("the request was cancelled before its answer arrived")
            return future.result()
        except (self._openai.APIConnectionError, self._httpx.HTTPError) as error:  # httpx errors occur in streams
            cause = error.__cause__ or error
            if isinstance(cause, ServerError):
                raise cause from None
            reason = f"{type(cause).__name__}: {cause}".rstrip(": ")
            message = f"{self.base_url} does not answer ({reason}); is it running, and is timeout long enough?"
            raise ServerError(message) from error
        except self._openai.APIError as error:
            raise self._to_error(error.body, getattr(error, "status_code", 200)) from error
        except (ValueError, RecursionError) as error:
            raise ServerError(f"{self.base_url} does not answer in JSON ({error})") from error
        finally:
            future.cancel()

    def _to_error(self, error: Any, status: int) -> RagBiasError:
        error = error if isinstance(error, dict) else {}
        message = str(error.get("message") or f"status {status} without a reason")
        if kind := ERRORS.get(str(error.get("code"))):
            return kind(message)
        if status == 400 and error:
            return ArgumentError(f"{error.get('param') or 'request'}: {message}")
        if status == 401:
            message += "; give api_key=, or set RAGBIAS_API_KEY"
        return ServerError(f"{self.base_url} rejects the request with status {status}: {message}")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that all connections of this process share."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="ragbias-remote").start()
    return loop


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_loop.cache_clear)  # the loop's thread does not survive a fork
