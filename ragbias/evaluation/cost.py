"""Measure the time and memory of methods, and describe the machine and the library versions."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from ragbias.lm import DebiasedLM
from ragbias.methods import Method, NoMethod
from ragbias.prompt import Prompt

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler writes a line at each start and stop

DECODED = 8  # number of tokens after the first one, in each round

Spread = tuple[float, float, float]  # median, lowest, highest


Cost = dict[str, list[float]]  # median, lowest and highest value over the rounds, by name
Taken = dict[str | None, list[tuple[float, ...]]]
Input = TypeVar("Input")


def now(device: torch.device) -> float:
    """Wait until the device has finished all work, and return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def interleave(
    methods: Mapping[str, Method], inputs: Sequence[Input], measure: Callable[[Input, Method], tuple[float, ...]]
) -> Taken:
    """Measure all methods on each input in turn. Return the measurements by label.

    The plain model always runs, once for all methods that leave it unchanged. Its measurements are under ``None``, and
    under the labels of these methods.
    """
    measured: dict[str | None, Method] = {None: NoMethod()}
    measured.update((label, method) for label, method in methods.items() if method.acts_on != "nothing")
    taken: Taken = {label: [] for label in measured}
    for item in inputs:
        for label, method in measured.items():
            taken[label].append(measure(item, method))
    return {label: taken.get(label, taken[None]) for label in (None, *methods)}


def figures(taken: Taken, label: str, index: int) -> tuple[Spread, Spread]:
    """Return the spread of measurement ``index``, and the spread of its ratio to the plain model."""
    values, plain = ([measured[index] for measured in taken[name]] for name in (label, None))
    return spread(values), spread([value / base for value, base in zip(values, plain, strict=True)])


def spread(values: Sequence[float]) -> Spread:
    """Return median, lowest and highest value."""
    return statistics.median(values), min(values), max(values)


def peak_bytes(device: torch.device, action: Callable[[], object]) -> float:
    """Measure the peak bytes of tensors that ``action`` allocates on the device.

    Existing tensors, such as the model, are excluded. Do not time ``action``: on a CPU, profiling slows it down.
    """
    gc.collect()  # frees tensors of earlier runs now, not during the action
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        action()
        return float(torch.cuda.max_memory_allocated(device) - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        action()
    events = profiled.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    in_order = (change for _, change in sorted(changes, key=lambda change: change[0]))
    return float(max(accumulate(in_order, initial=0)))


def versions() -> dict[str, str]:
    """Versions of the libraries that results depend on."""
    return {"ragbias": version("ragbias"), "torch": torch.__version__, "transformers": transformers.__version__}


def all_versions() -> dict[str, str]:
    """Versions of the libraries that results depend on, and of Python."""
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
    file = Path("/proc/cpuinfo")  # on Linux, the platform module knows only the architecture
    lines = file.read_text().splitlines() if file.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def measure_costs(
    lm: DebiasedLM, prompts: Sequence[str | Prompt], methods: Mapping[str, Method], rounds: int = 5
) -> dict[str, Cost]:
    """Measure the cost of every method by label, with greedy decoding and without batches.

    Each prompt must leave ``DECODED + 1`` tokens of the window free. Memory does not vary, so it is measured only once.
    This measurement comes first and serves as warm-up.

    Returns:
        ``prefill_seconds``: time to the first token, including all earlier work of the method; ``decode_seconds``: time
        per token after the first; ``peak_bytes``: peak memory in addition to the model; and ``prefill_ratio``,
        ``decode_ratio``, ``peak_ratio``: ratios to ``none`` on the same prompt in the same round.
    """
    chosen = [prompts[index % len(prompts)] for index in range(rounds)]
    peaks = interleave(
        methods, chosen[:1], lambda prompt, rule: (peak_bytes(lm.model.device, lambda: _generate(lm, prompt, rule)),)
    )
    times = interleave(methods, chosen, lambda prompt, method: _times(lm, prompt, method))
    costs: dict[str, Cost] = {}
    for label in methods:
        (prefill, prefill_ratio), (decode, decode_ratio) = (figures(times, label, index) for index in range(2))
        peak, peak_ratio = figures(peaks, label, 0)
        measured = {"prefill_seconds": prefill, "decode_seconds": decode, "peak_bytes": peak}
        measured |= {"prefill_ratio": prefill_ratio, "decode_ratio": decode_ratio, "peak_ratio": peak_ratio}
        costs[label] = {name: list(spread) for name, spread in measured.items()}
    return costs


def _generate(lm: DebiasedLM, prompt: str | Prompt, method: Method) -> None:
    lm.generate(prompt, method=method, max_new_tokens=DECODED + 1, min_new_tokens=DECODED + 1)


def _times(lm: DebiasedLM, prompt: str | Prompt, method: Method) -> tuple[float, float]:
    """Return the seconds of the prefill, and of each token after the first.

    Decoding is the time between the end of the previous pass and the end of a pass with one token. All other time is
    prefill, including extra passes of a method.
    """
    device, decoding = lm.model.device, 0.0
    begin = last = now(device)

    def hook(module: Any, arguments: Any, named: dict[str, Any], output: Any) -> None:
        nonlocal decoding, last
        end = now(device)
        ids = arguments[0] if arguments else named["input_ids"]
        if ids.shape[1] == 1:
            decoding += end - last
        last = end

    attached = lm.model.register_forward_hook(hook, with_kwargs=True)
    try:
        _generate(lm, prompt, method)
        total = now(device) - begin
    finally:
        attached.remove()
    return total - decoding, decoding / DECODED
