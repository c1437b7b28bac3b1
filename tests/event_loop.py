"""How free an event loop is while something runs on it."""

import asyncio
import time


async def gaps_during(work) -> list[float]:
    """Seconds between the ticks of a task beside ``work()``, ascending."""
    gaps, running = [], True

    async def tick():
        last = time.perf_counter()
        while running:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    await work()
    running = False
    await ticking
    return sorted(gaps)
