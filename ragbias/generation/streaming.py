"""An answer as a stream of pieces, generated in a thread of its own."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Iterator

from ragbias.generation.report import Generation


class Stream(Iterator[str]):
    """A text as it is being generated, in a thread of its own.

    Iterate to get the pieces; an error inside the generation is raised here. Closing or dropping the stream stops the
    computation at the next token.

    Args:
        job: generates; called with a function that takes the text so far, and the event that cancels it.
    """

    def __init__(self, job: Callable[[Callable[[str], None], threading.Event], Generation]) -> None:
        self._events: queue.SimpleQueue[str | BaseException | Generation] = queue.SimpleQueue()
        self._generation: Generation | None = None
        self._cancelled = threading.Event()
        self._emitted = 0
        context = contextvars.copy_context()
        arguments = (_work, job, self._events, self._cancelled)
        self._thread = threading.Thread(target=context.run, args=arguments, daemon=True, name="ragbias-stream")
        self._thread.start()

    @property
    def generation(self) -> Generation:
        """The whole result, once the stream is exhausted."""
        if self._generation is None:
            raise RuntimeError("the stream is not exhausted; iterate to its end first")
        return self._generation

    def __next__(self) -> str:
        while self._generation is None and not self._cancelled.is_set():
            event = self._events.get()
            if not isinstance(event, str):
                self._events.put(event)  # for another thread that waits for it
            if isinstance(event, BaseException):
                self._cancelled.set()
                raise event
            if isinstance(event, str):
                text = event
            else:
                text, self._generation = event.text, event
            piece, self._emitted = text[self._emitted :], max(self._emitted, len(text))
            if piece:
                return piece
        raise StopIteration

    def cancel(self) -> None:
        """Stop the computation at the next token, without waiting for it."""
        self._cancelled.set()

    def close(self) -> None:
        """Stop the computation and wait until it has stopped."""
        self.cancel()
        self._thread.join()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if "_cancelled" in vars(self):  # not if an interrupt came while it was made
            self.cancel()


def _work(
    job: Callable[[Callable[[str], None], threading.Event], Generation],
    events: queue.SimpleQueue[str | BaseException | Generation],
    cancelled: threading.Event,
) -> None:
    # a function of the module, so that the thread keeps no reference to the stream and a dropped one is collected
    try:
        events.put(job(events.put, cancelled))
    except BaseException as error:
        events.put(error)
