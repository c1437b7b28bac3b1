"""Calls that several threads make at the same time, answered together in padded batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ragbias.generation.report import Generation
from ragbias.generation.request import Request

MOST = 8  # requests that are joined


@dataclass(eq=False)
class _Call:
    requests: Sequence[Request]
    settings: dict[str, Any]
    cancelled: threading.Event | None
    alone: bool = False
    outcome: list[Generation] | Exception | None = None


class _AllCancelled:
    """Set once all of the calls are cancelled."""

    def __init__(self, calls: Sequence[_Call]) -> None:
        self._events = [call.cancelled for call in calls]

    def is_set(self) -> bool:
        return all(event is not None and event.is_set() for event in self._events)


class JoinedCalls:
    """Lets one call run at a time; those with equal settings that come meanwhile run together after it.

    The work is done in the callers' own threads. Calls that fail together are made again one by one, so that each
    caller gets its own error.

    Args:
        answer: answers requests, with their settings and what tells that they are cancelled.
    """

    def __init__(self, answer: Callable[[Sequence[Request], dict[str, Any], Any], list[Generation]]) -> None:
        self._answer = answer
        self._changed = threading.Condition()
        self._waiting: list[_Call] = []
        self._busy = False

    def answer(
        self, requests: Sequence[Request], settings: dict[str, Any], cancelled: threading.Event | None
    ) -> list[Generation]:
        """The answers to the requests of one call; the errors are those of ``answer``."""
        call = _Call(requests, settings, cancelled)
        with self._changed:
            self._waiting.append(call)
        try:
            while call.outcome is None:
                with self._changed:
                    self._changed.wait_for(lambda: call.outcome is not None or not self._busy)
                    together = [] if call.outcome is not None else self._next(call)
                    self._busy = self._busy or bool(together)
                if together:
                    self._run(together)
        finally:
            with self._changed:
                self._waiting = [each for each in self._waiting if each is not call]
        if isinstance(call.outcome, Exception):
            raise call.outcome
        return call.outcome

    def _next(self, call: _Call) -> list[_Call]:
        """The call and those that wait beside it and can run with it."""
        together, count = [call], len(call.requests)
        for other in self._waiting:
            fits = not (call.alone or other.alone) and count + len(other.requests) <= MOST
            if other is not call and fits and _are_equal(other.settings, call.settings):
                together.append(other)
                count += len(other.requests)
        self._waiting = [each for each in self._waiting if each not in together]
        return together

    def _run(self, together: Sequence[_Call]) -> None:
        own = together[0]
        try:
            requests = [request for call in together for request in call.requests]
            answers = iter(self._answer(requests, own.settings, _AllCancelled(together)))
            for call in together:
                call.outcome = [next(answers) for _ in call.requests]
        except Exception as error:
            if len(together) == 1:
                own.outcome = error
            for call in together:
                call.alone = True
        finally:  # after an error or Ctrl-C the others are as they were
            with self._changed:
                self._waiting = [*(call for call in together[1:] if call.outcome is None), *self._waiting]
                self._busy = False
                self._changed.notify_all()


def _are_equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether settings are the same; arrays, of which this cannot be said in one word, are not."""
    try:
        return left == right
    except (ValueError, RuntimeError):
        return False
