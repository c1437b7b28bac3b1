"""A real server on the loopback, in a thread."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from ragbias import DebiasedLM
from ragbias.serving.app import create_app
from ragbias.serving.engine import ModelEngine
from ragbias.serving.local_engine import local_engine
from ragbias.serving.run import Server, open_listener
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ServerSettings

SECONDS = 30.0  # maximum time to start


@contextmanager
def listening_app(app: FastAPI, port: int = 0, **settings: Any) -> Iterator[str]:
    """Serve an application during the block and yield its address without a path."""
    if not hasattr(app.state, "grace_ended"):  # the application does not use base_app
        app.state.grace_ended = asyncio.Event()
    listener = open_listener("127.0.0.1", port)
    server = Server(app, ServerSettings(**{"grace_seconds": 5, **settings}))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    deadline = time.monotonic() + SECONDS
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(SECONDS)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Parse the events of a streamed answer."""
    lines = response.content.split(b"\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


@contextmanager
def logs_restored() -> Iterator[None]:
    """Restore the process's log handlers after the block."""
    loggers = [logging.getLogger(name) for name in ("", "ragbias.serving", "uvicorn.error")]
    before = [(each.handlers, each.propagate, each.level) for each in loggers]
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for each, (handlers, propagate, level) in zip(loggers, before, strict=True):
            each.handlers, each.propagate = handlers, propagate
            each.setLevel(level)


def local_app(models: Mapping[str, DebiasedLM], **settings: Any) -> tuple[FastAPI, ModelEngine, Metrics]:
    """Create an application with loaded models."""
    server_settings, counters = ServerSettings(**settings), Metrics()
    engine = local_engine(lambda: models, server_settings, counters)
    engine.load()
    return create_app(engine, server_settings, counters), engine, counters


@contextmanager
def serving(models: Mapping[str, DebiasedLM], port: int = 0, **settings: Any) -> Iterator[str]:
    """Serve the models during the block and yield the server's address."""
    with listening_app(local_app(models, **settings)[0], port) as address:
        yield address
