"""Interleaved times of methods, peak memory, and the versions and the machine that both depend on."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from ragbias.methods import Method, NoMethod

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler writes a line at each start and stop

Spread = tuple[float, float, float]  # median, lowest, highest
Taken = dict[str | None, list[tuple[float, ...]]]
Input = TypeVar("Input")


def now(device: torch.device) -> float:
    """Seconds of a clock, once all work of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def interleaved(
    methods: Mapping[str, Method],
    inputs: Sequence[Input],
    measure: Callable[[Input, Method], tuple[float, ...]],
) -> Taken:
    """Measurements by label, one for each input; those of the plain model under ``None``, whatever its label.

    Args:
        methods: by label; ``none`` runs beside them, whether it is among them or not.
        inputs: one for each round, in which the methods take turns.
    """
    plain = next((label for label, method in methods.items() if method.name == NoMethod.name), None)
    with_plain: dict[str | None, Method] = {plain: NoMethod()}
    with_plain.update(methods.items())
    taken: Taken = {label: [] for label in with_plain}
    for each in inputs:
        for label, method in with_plain.items():
            taken[label].append(measure(each, method))
    taken[None] = taken[plain]
    return taken


def figures(taken: Taken, label: str, index: int, first: int) -> tuple[Spread, Spread]:
    """Of the rounds from ``first`` on: the spread of one measurement, and that of its ratio to the plain model's."""
    own, plain = ([each[index] for each in taken[name][first:]] for name in (label, None))
    return spread(own), spread([mine / base for mine, base in zip(own, plain, strict=True)])


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest."""
    return statistics.median(values), min(values), max(values)


def peak_bytes(device: torch.device, action: Callable[[], object]) -> float:
    """Peak bytes of tensors on this device during the action, beside those there before, e.g. the model.

    On a CPU the profiler counts, which slows the action down: take no times from it.
    """
    gc.collect()  # tensors of earlier runs that would be freed during the action
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


def versions() -> dict[str, str]:
    """Of the libraries that compute."""
    return {
        "ragbias": version("ragbias"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def all_versions() -> dict[str, str]:
    """Of the libraries that compute, and of Python."""
    return {**versions(), "python": platform.python_version()}


def machine() -> dict[str, Any]:
    """System, processor, torch's vector instructions, cores, threads and GPUs."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _processor() -> str:
    known = Path("/proc/cpuinfo")  # on Linux Python itself knows the architecture only
    lines = known.read_text().splitlines() if known.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
