"""Blocking work off the event loop, in threads of its own.

asyncio's shared pool would not do: it has few threads, and calls that wait there for a model would keep out the ones
that bring a running answer forward.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextvars import copy_context
from typing import TypeVar

from ragbias.decoding import Stream

T = TypeVar("T")


async def call(function: Callable[[], T]) -> T:
    """Run a function in a thread with this context and wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:  # it is raised again where the result is awaited
            error = raised
        _tell(loop, finish, result, error)

    _start(work)
    return await future


async def pieces(stream: Stream) -> AsyncGenerator[str, None]:
    """The pieces of a stream; closing this generator, or cancelling its consumer, stops the computation."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    def work() -> None:
        try:
            for piece in stream:
                _tell(loop, queue.put_nowait, piece)
            _tell(loop, queue.put_nowait, None)
        except BaseException as error:  # it is raised again where the pieces are read
            _tell(loop, queue.put_nowait, error)

    _start(work)
    try:
        while (event := await queue.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        _start(stream.close)  # close() waits for the end of a computation step


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=copy_context().run, args=(work,), daemon=True, name="ragbias-async").start()


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():  # a closed loop has nobody left who listens
            raise
