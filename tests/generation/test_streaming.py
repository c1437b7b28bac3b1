"""A stream that was never made is dropped in silence."""

import signal
import sys

import pytest

from ragbias.generation.streaming import Stream


def test_an_interrupted_stream_prints_nothing_as_it_is_dropped(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    def interrupt(frame, event, argument):
        if frame.f_code is Stream.__init__.__code__:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background lacks
    try:
        with pytest.raises(KeyboardInterrupt):
            sys.settrace(interrupt)
            Stream(lambda emit, cancelled: None)
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGINT, before)
    assert not said
