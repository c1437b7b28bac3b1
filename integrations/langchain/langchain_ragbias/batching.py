"""Requests that several runs make at the same time, answered as one padded batch.

LangChain gives every conversation of a batch a run of its own: callbacks, cache, errors. Those stay as they are. Each
run brings its request to a common meeting instead of answering it; when all have come, or left without a request (a
cache knew the answer, or an error ended the run), the requests are answered together.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

from ragbias.lm import Generation
from ragbias.request import Request

T = TypeVar("T")
Answerer = Callable[..., list[Generation]]
"""Called with the requests, their settings and the event that cancels them."""


class Meeting:
    """Where the runs of one batch bring their requests.

    Args:
        seats: number of runs.
        answer: answers all requests at once.
    """

    def __init__(self, seats: int, answer: Answerer) -> None:
        self.cancelled = threading.Event()
        self._expected, self._answer = seats, answer
        self._waiting: list[tuple[Request, dict[str, Any], Future[Generation]]] = []
        self._lock = threading.Lock()

    def join(self, request: Request, settings: dict[str, Any]) -> Future[Generation]:
        """Bring a request; the last one starts the computation, in a thread of its own."""
        future: Future[Generation] = Future()
        with self._lock:
            self._waiting.append((request, settings, future))
        self._arrived()
        return future

    def leave(self) -> None:
        """Come without a request."""
        self._arrived()

    def _arrived(self) -> None:
        with self._lock:
            self._expected -= 1
            complete = self._expected == 0 and bool(self._waiting)
        if complete:
            threading.Thread(target=self._run, daemon=True, name="ragbias-batch").start()

    def _run(self) -> None:
        try:
            requests = [request for request, *_ in self._waiting]
            answers = self._answer(requests, self._waiting[0][1], self.cancelled)
            if self.cancelled.is_set():
                raise CancelledError
        except BaseException as error:
            for *_, future in self._waiting:
                _settle(future, error)
        else:
            for (*_, future), answer in zip(self._waiting, answers, strict=True):
                _settle(future, answer)


def _settle(future: Future[Generation], outcome: Generation | BaseException) -> None:
    if future.set_running_or_notify_cancel():  # an async run may have given up
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class Seat:
    """One run's place at a meeting, to be taken once by the model that holds it."""

    def __init__(self, meeting: Meeting, owner: object) -> None:
        self._meeting, self._owner, self._free = meeting, owner, True

    def take(self, owner: object) -> Meeting | None:
        """The meeting, if it is this owner's and this is the run's first request."""
        if not self._free or owner is not self._owner:
            return None
        self._free = False
        return self._meeting

    def leave(self) -> None:
        """Give the place up, if it was not taken."""
        if self._free:
            self._free = False
            self._meeting.leave()


_seat: ContextVar[Seat | None] = ContextVar("langchain_ragbias_seat", default=None)


def meeting_of(owner: object) -> Meeting | None:
    """Where this run's request goes; ``None`` for a run that is no part of a batch, and is answered at once."""
    seat = _seat.get()
    return None if seat is None else seat.take(owner)


def together(owner: object, jobs: Sequence[Callable[[], T]], size: int, answer: Answerer) -> list[T | Exception]:
    """The results or errors of runs that ``owner`` answers, in padded batches of at most ``size``."""

    def run(job: Callable[[], T], meeting: Meeting) -> T | Exception:
        seat = Seat(meeting, owner)
        _seat.set(seat)
        try:
            return job()
        except Exception as error:
            return error
        finally:
            seat.leave()

    results: list[T | Exception] = []
    for group in _groups(jobs, size):
        meeting = Meeting(len(group), answer)
        with ThreadPoolExecutor(len(group), thread_name_prefix="ragbias-run") as pool:
            futures = [pool.submit(contextvars.copy_context().run, run, job, meeting) for job in group]
            try:
                results += [future.result() for future in futures]
            except BaseException:  # Ctrl-C: the pool waits for its threads, and they for the model
                meeting.cancelled.set()
                raise
    return results


async def atogether(
    owner: object, jobs: Sequence[Callable[[], Awaitable[T]]], size: int, answer: Answerer
) -> list[T | Exception]:
    """As ``together``, with tasks instead of threads."""

    async def run(job: Callable[[], Awaitable[T]], meeting: Meeting) -> T | Exception:
        seat = Seat(meeting, owner)
        _seat.set(seat)
        try:
            return await job()
        except Exception as error:
            return error
        finally:
            seat.leave()

    results: list[T | Exception] = []
    for group in _groups(jobs, size):
        meeting = Meeting(len(group), answer)
        try:
            results += await asyncio.gather(*(run(job, meeting) for job in group))
        except asyncio.CancelledError:
            meeting.cancelled.set()
            raise
    return results


def unless_failed(results: Sequence[T | Exception]) -> list[T]:
    """The results, or the first error."""
    good: list[T] = []
    for result in results:
        if isinstance(result, Exception):
            raise result
        good.append(result)
    return good


def _groups(jobs: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for begin in range(0, len(jobs), size):
        yield jobs[begin : begin + size]
