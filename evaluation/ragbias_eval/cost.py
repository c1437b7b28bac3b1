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

DECODED_TOKENS = 8  # tokens after the first one, in each round

Spread = tuple[float, float, float]  # median, lowest, highest
Cost = dict[str, list[float]]  # by name of the figure: its spread over the rounds
Measurements = dict[str | None, list[tuple[float, ...]]]  # by method label; None: the plain model
Input = TypeVar("Input")


def synchronized_time(device: torch.device) -> float:
    """Wait until the device has finished its work, then return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def interleave(
    methods: Mapping[str, Method], inputs: Sequence[Input], measure: Callable[[Input, Method], tuple[float, ...]],
    advance: Callable[[], None] = lambda: None,
) -> Measurements:  # fmt: skip
    """Measure all methods on the first input, then on the next input, and so on.

    The plain model always runs, once per input. Its measurements are stored under the key None, and under the labels of
    methods that do not change the model.
    """
    measured: dict[str | None, Method] = {None: NoMethod()}
    measured.update((label, method) for label, method in methods.items() if not method.is_plain)
    taken: Measurements = {label: [] for label in measured}
    for item in inputs:
        for label, method in measured.items():
            taken[label].append(measure(item, method))
            advance()
    return {label: taken.get(label, taken[None]) for label in (None, *methods)}


def spreads(taken: Measurements, label: str, index: int) -> tuple[Spread, Spread]:
    """Return the spread of one measured quantity of a method, and the spread of its ratio to the plain model's.

    ``index`` selects the quantity.
    """
    values = [measured[index] for measured in taken[label]]
    plain = [measured[index] for measured in taken[None]]
    return spread(values), spread([value / base for value, base in zip(values, plain, strict=True)])


def spread(values: Sequence[float]) -> Spread:
    """Return ``(median, lowest, highest)``."""
    return statistics.median(values), min(values), max(values)


def peak_memory(device: torch.device, action: Callable[[], object]) -> float:
    """Measure the peak memory, in bytes, of tensors that ``action`` allocates on the device.

    Existing tensors, such as the weights, are excluded. On a CPU, profiling slows ``action`` down.
    """
    gc.collect()  # otherwise tensors of earlier runs may be freed during the action
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
    """Return the versions of the libraries that affect results."""
    return {"ragbias": version("ragbias"), "torch": torch.__version__, "transformers": transformers.__version__}


def describe_machine() -> dict[str, Any]:
    """Describe Python, the system, the processor, vector instructions in use, cores, threads and GPUs."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor_name(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _processor_name() -> str:
    file = Path("/proc/cpuinfo")  # on Linux, ``platform`` knows only the architecture
    lines = file.read_text().splitlines() if file.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def measure_costs(
    lm: DebiasedLM, prompts: Sequence[str | Prompt], methods: Mapping[str, Method], rounds: int = 5,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Cost]:  # fmt: skip
    """Measure the cost of every method, with greedy decoding and one prompt at a time.

    Each prompt must leave ``DECODED_TOKENS + 1`` tokens of the window free. Memory does not vary, so it is measured in
    only one run. This run also warms up the model. ``advance`` is called after each run of the plain model
    or of a method that changes the model.

    Returns:
        the costs by label: ``prefill_seconds`` to the first token, ``decode_seconds`` per later token, and
        ``peak_bytes`` of memory in addition to the model. ``prefill_ratio``, ``decode_ratio`` and ``peak_ratio`` are
        relative to ``none`` on the same prompt in the same round.
    """
    chosen = [prompts[index % len(prompts)] for index in range(rounds)]

    def measure_peak(prompt: str | Prompt, method: Method) -> tuple[float]:
        return (peak_memory(lm.model.device, lambda: _generate(lm, prompt, method)),)

    peaks = interleave(methods, chosen[:1], measure_peak, advance)
    times = interleave(methods, chosen, lambda prompt, method: _measure_times(lm, prompt, method), advance)
    costs: dict[str, Cost] = {}
    for label in methods:
        prefill, prefill_ratio = spreads(times, label, 0)
        decode, decode_ratio = spreads(times, label, 1)
        peak, peak_ratio = spreads(peaks, label, 0)
        measured = {"prefill_seconds": prefill, "decode_seconds": decode, "peak_bytes": peak}
        measured |= {"prefill_ratio": prefill_ratio, "decode_ratio": decode_ratio, "peak_ratio": peak_ratio}
        costs[label] = {name: list(spread) for name, spread in measured.items()}
    return costs


def _generate(lm: DebiasedLM, prompt: str | Prompt, method: Method) -> None:
    lm.generate(prompt, method=method, max_new_tokens=DECODED_TOKENS + 1, min_new_tokens=DECODED_TOKENS + 1)


def _measure_times(lm: DebiasedLM, prompt: str | Prompt, method: Method) -> tuple[float, float]:
    """Return the seconds of the prefill and of each later token.

    If a forward pass has one token, the time from the end of the previous pass to the end of this pass counts as
    decoding. All other time counts as prefill, including extra passes of a method.
    """
    device = lm.model.device
    decoding = 0.0
    begin = last = synchronized_time(device)

    def hook(module: Any, arguments: Any, keywords: dict[str, Any], output: Any) -> None:
        nonlocal decoding, last
        end = synchronized_time(device)
        ids = arguments[0] if arguments else keywords["input_ids"]
        if ids.shape[1] == 1:
            decoding += end - last
        last = end

    attached = lm.model.register_forward_hook(hook, with_kwargs=True)
    try:
        _generate(lm, prompt, method)
        total = synchronized_time(device) - begin
    finally:
        attached.remove()
    return total - decoding, decoding / DECODED_TOKENS
