"""A text stream for an event loop: the blocking reads happen in a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable

from ragbias.decoding import Stream
from ragbias.report import Generation


async def pieces(open_stream: Callable[[], Stream]) -> AsyncGenerator[str | Generation, None]:
    """The pieces of a stream, then its generation. Leaving early stops the computation at the next token.

    Args:
        open_stream: starts the stream; called in the thread, as finding the documents takes time as well.
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[str | Generation | BaseException] = asyncio.Queue()
    dropped = threading.Event()

    def send(event: str | Generation | BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits for it
            loop.call_soon_threadsafe(events.put_nowait, event)

    def read() -> None:
        try:
            with open_stream() as stream:
                for piece in stream:
                    if dropped.is_set():
                        return
                    send(piece)
                send(stream.generation)
        except BaseException as error:
            send(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(read,), daemon=True, name="ragbias-astream").start()
    try:
        while True:
            event = await events.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if isinstance(event, Generation):
                return
    finally:
        dropped.set()
