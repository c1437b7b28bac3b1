"""Open streams are closed when the interpreter exits, and interrupted ones are dropped silently."""

import signal
import subprocess
import sys

import pytest

from ragbias.errors import RagBiasError
from ragbias.generation import Stream
from support.prompts import PROMPT

LEFT_OPEN = """
from ragbias.generation.streaming import Stream

def job(emit, cancelled):
    emit("a piece")
    cancelled.wait(60)
    print("ended")

stream = Stream(job, None)
print(next(stream))
"""


def test_a_stream_left_open_is_cancelled_and_joined_at_exit():
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "a piece\nended\n", "")


def test_an_interrupted_stream_prints_nothing_as_it_is_dropped(monkeypatch):
    pieces = []
    monkeypatch.setattr(sys, "unraisablehook", pieces.append)

    def interrupt(frame, event, argument):
        if frame.f_code is Stream.__init__.__code__:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background lacks
    try:
        with pytest.raises(KeyboardInterrupt):
            sys.settrace(interrupt)
            Stream(lambda emit, cancelled: None, None)
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGINT, before)
    assert not pieces


def test_a_closed_stream_has_the_report_of_its_request(lm):
    request = lm.prepare(PROMPT)
    with lm.stream(request, max_new_tokens=2) as stream:
        assert next(stream)
    assert stream.report == request.report
    with pytest.raises(RagBiasError, match="not exhausted; iterate to its end, or read its report"):
        _ = stream.generation
