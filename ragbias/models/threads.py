"""Limit torch's threads to the number of idle CPU cores."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

PROBE_SECONDS = 0.01
BLOCK = bytes(1 << 19)  # large enough that hashing releases the GIL, for about a millisecond


def use_idle_cores() -> None:
    """Set ``OMP_NUM_THREADS`` to the number of idle cores if some cores are busy. Call this before importing torch.

    OpenMP threads spin while they wait, so threads that share a core are much slower. A user's setting is not changed.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    idle = idle_cores(cores)
    if idle < 0.9 * cores:
        os.environ["OMP_NUM_THREADS"] = str(idle)
        threads = "1 thread" if idle == 1 else f"{idle} threads"
        message = f"{idle} of {cores} cores are idle, so torch uses {threads}; set OMP_NUM_THREADS for another number"
        print(f"ragbias: {message}", file=sys.stderr)


def idle_cores(cores: int) -> int:
    """Estimate the number of idle cores, at least 1, from the CPU time of one short thread per core."""

    def share(_: int) -> float:
        begin, used = time.perf_counter(), time.thread_time()
        while (passed := time.perf_counter() - begin) < PROBE_SECONDS:
            hashlib.sha256(BLOCK)
        return (time.thread_time() - used) / passed

    with ThreadPoolExecutor(cores) as pool:
        return max(1, round(sum(pool.map(share, range(cores)))))
