"""Connections that send no request do not make the server unreachable, and open ones end in order."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import httpx
from fastapi import FastAPI

from ragbias.serving import server as server_module
from ragbias.serving.server import Metrics, base_app
from ragbias.serving.settings import ServerSettings
from support.live_server import listening_app

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
    monkeypatch.setattr(server_module, "SECONDS_FOR_HEAD", 0.3)
    with listening_app(app()) as address, ExitStack() as stack:
        first, second = connected(address, stack), connected(address, stack)
        first.sendall(HALF)
        second.sendall(HALF + b"\r\n" + HALF)  # the second head of a connection that stays open
        assert is_closed(first) and is_closed(second)


def test_the_oldest_connections_without_a_request_make_room():
    with listening_app(app(), max_connections=4) as address, ExitStack() as stack:
        connections = [connected(address, stack) for _ in range(12)]
        connections[0].sendall(HALF)
        time.sleep(0.3)
        assert httpx.get(f"{address}/health").status_code == 200
        assert sum(is_closed(connection, 0.01) for connection in connections) >= 8
