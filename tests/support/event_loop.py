"""How free an event loop is while something runs on it, and work on it that is cancelled."""

import asyncio
import time

import pytest


async def gaps_during(work) -> list[float]:
    """Seconds between the ticks of a task beside ``work()``, ascending.

    Measured in processor time of this process if that is less, so that time taken by other processes does not count.
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
    """Run a coroutine and cancel it when the model has made ``count`` forward passes."""
    task = asyncio.create_task(work)
    while len(passes) < count:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
