"""Connections without a request do not block the server, and open connections are closed in order."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import httpx
from fastapi import FastAPI, Request

from ragbias.serving import run as run_module
from ragbias.serving.server import EventStream, Metrics, base_app, cancel_on_disconnect
from ragbias.serving.settings import ServerSettings
from support.live_server import events, listening_app

HALF = b"GET /health HTTP/1.1\r\nHost: a\r\n"


async def ready() -> str:
    return ""


def app(**settings: object) -> FastAPI:
    return base_app("test", ServerSettings(**settings), Metrics(), ready)


def connected(address: str, stack: ExitStack) -> socket.socket:
    url = httpx.URL(address)
    return stack.enter_context(socket.create_connection((url.host, url.port), timeout=10))


def is_closed(connection: socket.socket, timeout: float = 5.0) -> bool:
    connection.settimeout(timeout)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def test_half_open_headers_time_out(monkeypatch):
    monkeypatch.setattr(run_module, "SECONDS_FOR_HEAD", 0.3)
    with listening_app(app()) as address, ExitStack() as stack:
        first, second = connected(address, stack), connected(address, stack)
        first.sendall(HALF)
        second.sendall(HALF + b"\r\n" + HALF)  # the second head of a connection that stays open
        assert is_closed(first) and is_closed(second)


def test_the_oldest_connections_without_a_request_make_room():
    with listening_app(app(), max_connections=4) as address, ExitStack() as stack:
        old = [connected(address, stack) for _ in range(4)]
        old[0].sendall(HALF)
        time.sleep(0.3)  # the server notes the age of connections every 0.1 s
        new = [connected(address, stack) for _ in range(4)]
        assert all(is_closed(connection) for connection in old)
        assert not any(is_closed(connection, 0.2) for connection in new)
        assert httpx.get(f"{address}/health").status_code == 200


def test_requests_past_the_grace_period_end_with_an_error():
    slow, started, closed = app(), threading.Semaphore(0), threading.Event()

    async def numbers() -> AsyncGenerator[str, None]:
        yield 'data: {"number": 1}\n\n'
        started.release()
        await asyncio.sleep(60)

    async def close() -> None:
        closed.set()

    @slow.get("/stream")
    async def stream() -> EventStream:
        return EventStream(numbers(), close, {})

    @slow.get("/whole")
    async def whole(request: Request) -> None:
        started.release()
        await cancel_on_disconnect(request, asyncio.sleep(60))

    answers: dict[str, httpx.Response] = {}
    with listening_app(slow, grace_seconds=0) as address:

        def get(path: str) -> None:
            answers[path] = httpx.get(f"{address}{path}")

        threads = [threading.Thread(target=get, args=(path,)) for path in ("/stream", "/whole")]
        for thread in threads:
            thread.start()
        assert started.acquire(timeout=10) and started.acquire(timeout=10)
    for thread in threads:
        thread.join(10)
    number, error = events(answers["/stream"])
    assert number == {"number": 1} and error["error"]["code"] == "shutting_down" and closed.is_set()
    assert answers["/whole"].status_code == 503 and answers["/whole"].json() == error
