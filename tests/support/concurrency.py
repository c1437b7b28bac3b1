"""Run threads or processes at the same time, measure how long work blocks an event loop, and cancel work."""

import asyncio
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from threading import Thread

import pytest


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until a condition holds, and fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def side_by_side(workers: Sequence[Thread | BaseProcess]) -> None:
    """Start all workers and wait until all have ended."""
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


async def gaps_during(work) -> list[float]:
    """Run ``work()`` next to a ticking task. Return the seconds between ticks, sorted.

    Each gap is the minimum of wall time and processor time, so that time used by other processes does not count.
    """
    gaps, running = [], True

    async def tick():
        while running:
            wall, processor = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.001)
            gaps.append(min(time.perf_counter() - wall, time.process_time() - processor))

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    await work()
    running = False
    await ticking
    return sorted(gaps)


async def cancel_after_passes(work, passes, count=3):
    """Run a coroutine and cancel it after ``count`` forward passes of the model."""
    task = asyncio.create_task(work)
    while len(passes) < count:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
