"""Record the requests of a pipeline, for replay."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ragbias.generation.request import Request
from ragbias.generation.settings import GenerationSettings

_lock = threading.Lock()
_open: list[list[Recorded]] = []


@dataclass(frozen=True)
class Recorded:
    """A request that a model answered.

    Attributes:
        lm: the ``DebiasedLM``, a type of a higher layer.
        settings: keyword arguments for ``DebiasedLM.generate``.
    """

    lm: Any
    request: Request
    settings: dict[str, Any]


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """Collect the requests that any ``DebiasedLM`` of this process answers inside, in all threads."""
    records: list[Recorded] = []
    with _lock:
        _open.append(records)
    try:
        yield records
    finally:
        with _lock:
            _open[:] = [other for other in _open if other is not records]


def record(lm: object, requests: Sequence[Request], settings: GenerationSettings) -> None:
    """Add requests to all open recordings."""
    with _lock:
        for records in _open:
            records += [Recorded(lm, request, settings.arguments()) for request in requests]
