"""Connections to servers: broken off, with split lines, and in forked processes."""

import asyncio
import gzip
import os
import sys
import threading
from collections.abc import Iterator

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from ragbias import limits
from ragbias.boundaries import locate
from ragbias.errors import MissingExtraError, ServerError, WrongTypeError
from ragbias.frameworks.connection import MAX_PARALLEL, Connection
from ragbias.frameworks.remote import RemoteLM
from ragbias.generation import GenerationSettings
from ragbias.generation.preparing import split_located
from ragbias.generation.text_orders import order_text
from ragbias.methods import NoMethod
from support.live_server import listening_app

CARD = {"id": "m", "max_model_len": 100, "ragbias": {"tools": False, "chat": False}}
EVENT = 'data: {"choices": [{"text": "one\u2028two\u0085three", "finish_reason": null}]}\n\n'


class Stub:
    """A server that counts open connections and streams one event without an end."""

    def __init__(self) -> None:
        self.app, self.open, self.most = FastAPI(), 0, 0
        self.app.get("/v1/models")(lambda: {"data": [CARD]})
        self.app.post("/v1/completions")(self.stream)
        self.app.post("/counted")(self.counted)
        self.app.post("/deep")(lambda: Response("[" * 200_000, media_type="application/json"))
        self.app.post("/bomb")(lambda: Response(gzip.compress(bytes(10**6)), headers={"content-encoding": "gzip"}))
        self.app.post("/long")(lambda: [0] * 200_000)

    async def stream(self) -> StreamingResponse:
        async def events():
            yield EVENT.encode()

        return StreamingResponse(events(), media_type="text/event-stream")

    async def counted(self, request: Request) -> dict[str, int]:
        number = (await request.json())["number"]
        self.open, self.most = self.open + 1, max(self.most, self.open + 1)
        try:
            await asyncio.sleep(0.02 if number >= 0 else 0)
            return {"number": 1 // (number >= 0) and number}
        finally:
            self.open -= 1


@pytest.fixture(scope="module")
def stub() -> Iterator[tuple[Stub, str]]:
    server = Stub()
    with listening_app(server.app) as address:
        yield server, address


def test_lines_end_at_a_line_feed_and_cut_answers_are_errors(stub):
    lm = RemoteLM(stub[1])
    stream = lm.stream_answer(lm.prepare("p", boundaries=locate("p"), method=NoMethod()), GenerationSettings())
    assert next(stream) == "one\u2028two\u0085three"
    with pytest.raises(ServerError, match="broke off before its end"):
        list(stream)


def test_requests_of_models_in_this_process_are_refused(stub):
    lm = RemoteLM(stub[1])
    remote = lm.prepare("p", boundaries=locate("p"), method=NoMethod())
    local = order_text(split_located("p", locate("p")), NoMethod())
    for refused in (lm.stream_answer, lambda request, settings: lm.answer([remote, request], settings)):
        with pytest.raises(WrongTypeError, match="use RemoteLM.prepare"):
            refused(local, GenerationSettings())


def test_many_requests_of_one_call_run_in_bounded_parallel(stub):
    count = 2 * MAX_PARALLEL + 3
    bodies = [{"number": number} for number in range(count)]
    responses = Connection(stub[1], "", 20, 0).post_all(["/counted"] * count, bodies, threading.Event())
    assert [each["number"] for each in responses] == list(range(count)) and 1 < stub[0].most <= MAX_PARALLEL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(stub):
    connection = Connection(stub[1], "", 20, 0)
    assert connection.model(None) == CARD
    child = os.fork()
    if child == 0:
        threading.Timer(10, os._exit, [2]).start()  # not to wait for ever
        os._exit(0 if connection.model(None) == CARD else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert connection.model(None) == CARD


@pytest.mark.parametrize("module", ["openai", "httpx"])
def test_without_its_packages_the_error_names_the_command(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"install it with: pip install 'ragbias\[remote\]'"):
        Connection("http://127.0.0.1:9", "", 1, 0)


@pytest.mark.parametrize(
    ("path", "text"), [("/deep", "not answer in JSON"), ("/bomb", "compresses"), ("/long", "more than 300,000 bytes")]
)
def test_deep_compressed_and_long_answers_are_refused(monkeypatch, stub, path, text):
    monkeypatch.setattr(limits, "ANSWER_BYTES", 300_000)
    with pytest.raises(ServerError, match=text):
        Connection(stub[1], "", 20, 0).post_all([path], [{}])
