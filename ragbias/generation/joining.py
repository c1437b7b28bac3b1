"""Join the calls of several threads into padded batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ragbias.generation.report import Generation
from ragbias.generation.request import Request
from ragbias.generation.settings import GenerationSettings

MOST = 8  # requests that are joined
Answer = Callable[[Sequence[Request], GenerationSettings, threading.Event | None], list[Generation]]


@dataclass(eq=False)
class _Call:
    requests: Sequence[Request]
    settings: GenerationSettings
    cancelled: threading.Event | None
    alone: bool = False
    outcome: list[Generation] | Exception | None = None

    def cancellable(self) -> list[Request]:
        """The requests, which end with this call whatever runs beside them."""
        return [replace(each, cancelled=self.cancelled or each.cancelled) for each in self.requests]

    def joins(self, other: _Call) -> bool:
        """Whether two calls have equal settings; settings that contain arrays are never equal."""
        try:
            return not (self.alone or other.alone) and self.settings == other.settings
        except (ValueError, RuntimeError):
            return False


class JoinedCalls:
    """Runs one call at a time; calls that wait with equal settings run together.

    The work is done in the callers' threads. Calls that fail together run again one by one, so that each caller gets
    its own error.

    Args:
        answer: answers requests, given their settings and an event that cancels them.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._changed = threading.Condition()
        self._waiting: list[_Call] = []
        self._busy = False

    def answer(
        self, requests: Sequence[Request], settings: GenerationSettings, cancelled: threading.Event | None
    ) -> list[Generation]:
        """The answers to the requests of one call; errors are those of the function given."""
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
        """The call and the waiting ones that can run with it."""
        together, count = [call], len(call.requests)
        for other in self._waiting:
            if other is not call and count + len(other.requests) <= MOST and call.joins(other):
                together.append(other)
                count += len(other.requests)
        self._waiting = [each for each in self._waiting if each not in together]
        return together

    def _run(self, together: Sequence[_Call]) -> None:
        own = together[0]
        try:
            requests = [request for call in together for request in call.cancellable()]
            answers = iter(self._answer(requests, own.settings, own.cancelled if len(together) == 1 else None))
            for call in together:
                call.outcome = [next(answers) for _ in call.requests]
        except Exception as error:
            if len(together) == 1:
                own.outcome = error
            for call in together:
                call.alone = True
        finally:  # after an error or Ctrl-C the other calls wait again
            with self._changed:
                self._waiting = [*(call for call in together[1:] if call.outcome is None), *self._waiting]
                self._busy = False
                self._changed.notify_all()
