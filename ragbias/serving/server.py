"""Run an application with uvicorn."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ragbias.errors import ArgumentError
from ragbias.serving.settings import ServerSettings
from ragbias.serving.telemetry import log


class _Server(uvicorn.Server):
    """Mark the application as draining on a signal."""

    def __init__(self, app: FastAPI, grace_seconds: int) -> None:
        super().__init__(
            uvicorn.Config(
                app, access_log=False, log_config=None, server_header=False, timeout_graceful_shutdown=grace_seconds
            )
        )
        self._state = app.state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._state.draining = True
        super().handle_exit(sig, frame)


def listening(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ArgumentError: the address is taken, or does not belong to this machine.
    """
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except (OSError, OverflowError) as error:
        raise ArgumentError(f"cannot listen on {host} port {port}: {error}; give another --host or --port") from error


def serve(app: FastAPI, settings: ServerSettings, host: str, port: int, load: Callable[[], None] | None = None) -> None:
    """Serve an application until a signal ends the process; running requests finish first.

    Args:
        load: loads the models while the server is alive, but not ready.

    Raises:
        ArgumentError: the address cannot be used.
        BaseException: whatever ``load`` raised.
    """
    listener, server = listening(host, port), _Server(app, settings.grace_seconds)
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
    for each in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the signal again after it has ended
        with suppress(ValueError):  # not in the main thread
            signal.signal(each, lambda *_: None)
    server.run([listener])
    if failures:
        raise failures[0]
    log("ended")
