"""Blocking work under an event loop, in threads of its own that carry the caller's context variables.

asyncio's shared pool would not do: it has few threads, and long answers in all of them would keep out the calls that
bring a running answer forward.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from ragbias.call_site import pass_to_worker
from ragbias.generation.streaming import Stream

T = TypeVar("T")


async def run(work: Callable[[threading.Event], T]) -> T:
    """Run a function in a thread and wait for it.

    Args:
        work: called with an event that is set when the awaiting task is cancelled; ``DebiasedLM.batch`` takes it as
            ``cancelled`` and stops at the next token.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    cancelled = threading.Event()

    def finish(outcome: Callable[[], None]) -> None:
        if not future.cancelled():
            outcome()

    def worker() -> None:
        try:
            result = work(cancelled)
        except BaseException as error:  # it is raised again where the result is awaited
            _tell(loop, finish, partial(future.set_exception, error))
        else:
            _tell(loop, finish, partial(future.set_result, result))

    _start(worker)
    try:
        return await future
    except asyncio.CancelledError:
        cancelled.set()
        raise


async def pieces(stream: Stream) -> AsyncGenerator[str, None]:
    """The pieces of a stream; closing this generator, or cancelling its consumer, stops the computation."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    def worker() -> None:
        try:
            for piece in stream:
                _tell(loop, queue.put_nowait, piece)
            _tell(loop, queue.put_nowait, None)
        except BaseException as error:  # it is raised again where the pieces are read
            _tell(loop, queue.put_nowait, error)

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
    pass_to_worker(context)
    threading.Thread(target=context.run, args=(worker,), daemon=True, name="ragbias-async").start()


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():  # a closed loop has nobody left who listens
            raise
