"""What the models of a pipeline are asked while it runs, so that the same can be asked again in other ways."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ragbias.generation.request import Request

_NOT_RECORDED = ("cancelled", "on_tokens")  # they belong to whoever waits for the answer
_lock = threading.Lock()
_open: list[list[Recorded]] = []


@dataclass(frozen=True)
class Recorded:
    """A request that a model answered.

    Attributes:
        lm: the ``DebiasedLM`` that answered, a type that this module lies below.
        settings: keyword arguments of ``DebiasedLM.generate`` that it was answered with.
    """

    lm: Any
    request: Request
    settings: dict[str, Any]


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """Collect the requests that any ``DebiasedLM`` of this process answers inside, in whatever thread.

    Frameworks answer in threads of their own, which know nothing of their caller; so what else runs at the same time
    is recorded too.
    """
    records: list[Recorded] = []
    with _lock:
        _open.append(records)
    try:
        yield records
    finally:
        with _lock:
            _open[:] = [other for other in _open if other is not records]


def note(lm: object, requests: Sequence[Request], **settings: Any) -> None:
    """Add requests to all open recordings."""
    kept = {name: value for name, value in settings.items() if name not in _NOT_RECORDED}
    with _lock:
        for records in _open:
            records += [Recorded(lm, request, kept) for request in requests]
