"""Generate an answer in a thread, and iterate over its text."""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from ragbias.errors import RagBiasError
from ragbias.generation.request import Generation, Report

Job = Callable[[Callable[[str], None], threading.Event], Generation]
Events = queue.SimpleQueue[str | BaseException | Generation]
_cancel_events: WeakKeyDictionary[threading.Thread, threading.Event] = WeakKeyDictionary()  # by thread


class Stream(Iterator[str]):
    """Iterator over the pieces of a text that a thread generates. Iteration raises the errors of the thread.

    If the stream is closed or deleted, the generation stops at the next token.

    Args:
        job: function that generates the text. It gets a callback for the text so far, and an event for cancellation.
        report: the report of the request. The report in ``generation`` also counts cached tokens.
    """

    def __init__(self, job: Job, report: Report) -> None:
        self.report = report
        self._events: Events = queue.SimpleQueue()
        self._generation: Generation | None = None
        self._cancelled = threading.Event()
        self._emitted = 0
        arguments = (_run_job, job, self._events, self._cancelled)
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=arguments, daemon=True, name="ragbias-stream")
        _cancel_events[self._thread] = self._cancelled
        self._thread.start()

    @property
    def generation(self) -> Generation:
        """The complete result. Raise ``RagBiasError`` unless the stream was read to its end."""
        if self._generation is None:
            raise RagBiasError("the stream is not exhausted; iterate to its end, or read its report")
        return self._generation

    def __next__(self) -> str:
        while self._generation is None and not self._cancelled.is_set():
            event = self._events.get()
            if isinstance(event, str):
                text = event
            else:
                self._events.put(event)  # for other threads that also iterate
                if isinstance(event, BaseException):
                    self._cancelled.set()
                    raise event
                text = event.text
                self._generation = event
            piece = text[self._emitted :]
            self._emitted = max(self._emitted, len(text))
            if piece:
                return piece
        raise StopIteration

    def cancel(self) -> None:
        """Stop the generation at the next token, without waiting for it."""
        self._cancelled.set()

    def close(self) -> None:
        """Stop the generation and wait until it has stopped."""
        self.cancel()
        self._thread.join()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if "_cancelled" in vars(self):  # missing after an interrupt in __init__
            self.cancel()


def _run_job(job: Job, events: Events, cancelled: threading.Event) -> None:
    # not a method, because a reference to the stream would prevent its garbage collection
    try:
        events.put(job(events.put, cancelled))
    except BaseException as error:
        events.put(error)


@atexit.register
def _cancel_all() -> None:
    """Stop all threads at exit. A thread that is still in torch would abort the process."""
    threads = dict(_cancel_events)
    for cancelled in threads.values():
        cancelled.set()
    for thread in threads:
        if thread.is_alive():  # an interrupt may have prevented its start
            thread.join()
