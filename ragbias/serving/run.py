"""Run an application with uvicorn until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from ragbias.errors import ArgumentError
from ragbias.serving.server import log
from ragbias.serving.settings import ServerSettings

SECONDS_FOR_HEAD = 15.0  # timeout of idle connections, including those with incomplete headers
SECONDS_FOR_ERRORS = 5  # time after the grace period, to send errors to remaining clients


class Server(uvicorn.Server):
    """A uvicorn server that closes idle connections after a time, or at once if there are too many."""

    def __init__(self, app: FastAPI, settings: ServerSettings) -> None:
        self._state = app.state
        self._idle_since: dict[tuple[Any, Any], float] = {}  # key: the connection and its last request
        max_files = os.sysconf("SC_OPEN_MAX") if os.name == "posix" else 2_048
        self._max_connections = min(settings.max_connections, max_files // 2)
        config = uvicorn.Config(
            app,
            http="h11",  # because it limits headers to 64 KiB
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            limit_concurrency=self._max_connections * 3 // 2,
            timeout_graceful_shutdown=settings.grace_seconds + SECONDS_FOR_ERRORS,
        )
        super().__init__(config)
        self._grace_seconds = settings.grace_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running requests during the grace period. Then answer the remaining requests with an error."""
        asyncio.get_running_loop().call_later(self._grace_seconds, self._state.grace_ended.set)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._state.draining = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Close connections that are idle too long. If there are too many, close those that are idle longest."""
        now = time.monotonic()
        before = self._idle_since
        protocols: list[Any] = list(self.server_state.connections)
        connections = [(protocol, protocol.cycle) for protocol in protocols]
        idle = [pair for pair in connections if pair[1] is None or pair[1].response_complete]
        self._idle_since = {pair: before.get(pair, now) for pair in idle}
        n_excess = len(connections) - self._max_connections
        for index, pair in enumerate(sorted(idle, key=lambda pair: self._idle_since[pair])):
            if index < n_excess or now - self._idle_since[pair] > SECONDS_FOR_HEAD:
                pair[0].transport.abort()
        return await super().on_tick(counter)


def open_listener(host: str, port: int) -> socket.socket:
    """Open a socket that listens on a host and port."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError, TypeError) as error:  # TypeError: not a host name
        raise ArgumentError(f"cannot listen on {host} port {port}: {error}; give another --host or --port") from error


def serve(app: FastAPI, settings: ServerSettings, host: str, port: int, load: Callable[[], None] | None = None) -> None:
    """Serve an application until SIGINT or SIGTERM, then let running requests finish during the grace period.

    If a thread still computes after the grace period, the process exits at once with code 0, because torch would abort
    a normal exit.

    Args:
        load: loads the models in a thread. ``/ready`` is a 503 until ``load`` returns. An error ends the server.
    """
    listener = open_listener(host, port)
    server = Server(app, settings)
    failures: list[BaseException] = []

    def load_models(load: Callable[[], None]) -> None:
        try:
            load()
        except BaseException as error:
            failures.append(error)
            server.should_exit = True
        else:
            log("ready")

    log("listening", host=host, port=listener.getsockname()[1])
    if load is not None:
        threading.Thread(target=load_models, args=(load,), daemon=True, name="ragbias-load").start()
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the signal again when it ends
        with suppress(ValueError):  # raised outside the main thread
            signal.signal(number, lambda *_: None)
    server.run([listener])
    if failures:
        raise failures[0]
    log("ended")
    if any(thread.name.startswith("ragbias-") for thread in threading.enumerate()):
        logging.shutdown()
        os._exit(0)
