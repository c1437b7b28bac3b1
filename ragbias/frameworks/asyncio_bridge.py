"""Run blocking work of asyncio programs in new threads, with the caller's context variables.

The default thread pool of asyncio is not used. It is small, and long answers could block all its threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

from ragbias.call_site import remember_call_site
from ragbias.generation import Stream

T = TypeVar("T")


async def in_thread(work: Callable[[threading.Event], T]) -> T:
    """Run a function in a new thread and return its result.

    Args:
        work: a function that takes an event and passes it to ``DebiasedLM.answer``. If the caller's task is cancelled,
            the event is set.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # after this, only the worker can complete the future
    cancelled = threading.Event()

    def worker() -> None:
        try:
            result = work(cancelled)
        except BaseException as error:  # raised in the awaiting task
            future.set_exception(error)
        else:
            future.set_result(result)

    _start(worker)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        cancelled.set()
        raise


async def pieces(stream: Stream) -> AsyncGenerator[str, None]:
    """Yield the pieces of a stream. To stop the computation, close this generator or cancel its consumer."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    def put(event: str | BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(queue.put_nowait, event)
        except RuntimeError:
            if not loop.is_closed():
                raise

    def worker() -> None:
        try:
            for piece in stream:
                put(piece)
            put(None)
        except BaseException as error:  # raised in the consumer
            put(error)

    _start(worker)
    try:
        while (event := await queue.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        stream.cancel()


def _start(worker: Callable[[], None]) -> None:
    context = copy_context()
    context.run(remember_call_site)
    threading.Thread(target=context.run, args=(worker,), daemon=True, name="ragbias-async").start()
