"""Running an application with uvicorn: listening, loading, ending."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ragbias.errors import ArgumentError
from ragbias.lm import DebiasedLM
from ragbias.serving.app import create_app
from ragbias.serving.local_engine import LocalEngine
from ragbias.serving.logs import log
from ragbias.serving.metrics import Metrics
from ragbias.serving.settings import ServerSettings


class _Server(uvicorn.Server):
    """Tells the application as soon as it is to end, and ends by itself once something has failed."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, failure: Callable[[], BaseException | None]) -> None:
        super().__init__(config)
        self._app, self._failure = app, failure

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.state.draining = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._failure() is not None


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ArgumentError: the address is taken, or is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        raise ArgumentError(f"cannot listen on {host} port {port}: {error}; give another --host or --port") from error
    found.listen(2048)
    return found


class Loading:
    """Loads an engine's models in a thread while the server already tells that it is alive.

    Attributes:
        failure: what loading raised.
    """

    def __init__(self, engine: LocalEngine) -> None:
        self.failure: BaseException | None = None
        self._engine = engine

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """The application's."""
        threading.Thread(target=self._load, daemon=True, name="ragbias-load").start()
        yield

    def _load(self) -> None:
        try:
            self._engine.load()
        except BaseException as error:
            self.failure = error
        else:
            log("ready")


def serve(load: Callable[[], Mapping[str, DebiasedLM]], settings: ServerSettings, host: str, port: int) -> None:
    """Serve the models that ``load`` gives, until the process is told to end.

    Raises:
        ArgumentError: nothing can listen there.
        BaseException: whatever ``load`` raised.
    """
    listener, counters = listening(host, port), Metrics()
    engine = LocalEngine(load, settings, counters)
    loading = Loading(engine)
    log("listening", host=host, port=listener.getsockname()[1])
    run(create_app(engine, settings, counters, loading.lifespan), listener, settings, lambda: loading.failure)


def run(
    app: FastAPI,
    listener: socket.socket,
    settings: ServerSettings,
    failure: Callable[[], BaseException | None] = lambda: None,
) -> None:
    """Serve until the process is told to end, and finish what runs.

    Args:
        listener: listens already.
        failure: gives an error that ends the server.

    Raises:
        BaseException: what ``failure`` gave.
    """
    config = uvicorn.Config(
        app, access_log=False, log_config=None, server_header=False, timeout_graceful_shutdown=settings.grace_seconds
    )
    for each in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the signal again when it has ended
        with suppress(ValueError):  # not in the main thread
            signal.signal(each, lambda *_: None)
    _Server(config, app, failure).run([listener])
    if (error := failure()) is not None:
        raise error
    log("ended")
