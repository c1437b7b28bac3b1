"""Measuring methods side by side: in each round the plain model and every method, one after the other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from ragbias.methods import Method, NoMethod

Spread = tuple[float, float, float]  # median, lowest, highest
Taken = dict[str | None, list[tuple[float, ...]]]
Input = TypeVar("Input")


def now(device: torch.device) -> float:
    """Seconds of a clock, read when all work of the device is done."""
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
        inputs: one for each round.
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
