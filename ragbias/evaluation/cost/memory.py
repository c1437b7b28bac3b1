"""The most memory in use at once while something runs."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler writes a line at each start and stop


def peak_bytes(device: torch.device, action: Callable[[], object]) -> float:
    """Bytes of tensors on this device at the highest point of the action, beside what was there before, e.g. the model.

    On a CPU the profiler counts, which slows the action down: take no times from it.
    """
    gc.collect()  # tensors of earlier runs that would be freed on the way
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        action()
        return float(torch.cuda.max_memory_allocated(device) - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        action()
    events = profiled.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    used = peak = 0
    for _, change in sorted(changes, key=lambda each: each[0]):
        used += change
        peak = max(peak, used)
    return float(peak)
