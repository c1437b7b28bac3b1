"""Record the requests to all models of the process, for replay."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ragbias.generation.arguments import GenerationSettings
from ragbias.generation.request import Request

_lock = threading.Lock()
open_recordings: list[list[RecordedRequest]] = []  # ``DebiasedLM`` adds its requests to each of them


@dataclass(frozen=True)
class RecordedRequest:
    """A request to a ``DebiasedLM``, with the settings of its generation."""

    lm: Any  # a DebiasedLM, whose module imports this one
    request: Request
    settings: GenerationSettings


@contextmanager
def recording() -> Iterator[list[RecordedRequest]]:
    """Record the requests to all ``DebiasedLM`` objects of the process, from all threads, while the context is open."""
    records: list[RecordedRequest] = []
    with _lock:
        open_recordings.append(records)
    try:
        yield records
    finally:
        with _lock:
            open_recordings[:] = [other for other in open_recordings if other is not records]
