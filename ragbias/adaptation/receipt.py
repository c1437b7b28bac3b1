"""The receipt of a reader adapter: its effect on the log-probability of answers to held-out questions, in nats."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ragbias.adaptation.examples import Example
from ragbias.adaptation.teacher import Lesson
from ragbias.evaluation.measures.bootstrap import share
from ragbias.generation.scoring import logprobs_of
from ragbias.lm import DebiasedLM
from ragbias.methods import Method

POSITIONS = 3  # positions of the gold document, or orders if it is unknown
CHECKED, ORDERS = 2, 6  # number of prompts and of orders for the check of invariance


def receipt_of(
    lm: DebiasedLM,
    method: Method,
    reader: str,
    held_out: Sequence[tuple[Example, Lesson]],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Compare the plain model, the method, and the method with its reader on held-out examples.

    The gain is the log-probability with the reader minus that without it. ``supported`` is whether its interval is
    above zero. If answers are unknown, the plain model's answers are used. Then a gain means that the method is closer
    to the plain model, not that it is more accurate. ``progress`` is called with the number of finished examples.
    """
    with_reader = replace(method, reader=reader)
    plain, before, after = [], [], []
    for index, (example, lesson) in enumerate(held_out):
        orders = _orders(example, random.Random(index))
        plain.append([_logprob(lm, example, lesson, order, "none") for order in orders])
        seen = orders[:1] if method.invariant else orders
        before.append(fmean(_logprob(lm, example, lesson, order, method) for order in seen))
        after.append(fmean(_logprob(lm, example, lesson, order, with_reader) for order in seen))
        progress(index + 1)
    by_position = [fmean(values) for values in zip(*plain, strict=True)]
    best = max(range(POSITIONS), key=by_position.__getitem__)
    has_gold = all(example.gold is not None for example, _ in held_out)
    measured = "the answer" if held_out[0][0].answers else "the plain model's answer"
    mean = [fmean(values) for values in plain]
    improvement = _difference(after, before)
    return {
        "measure": f"log-probability of {measured}, nats",
        "questions": len(held_out),
        "plain": {
            "mean": fmean(mean),
            "best_position": max(by_position) if has_gold else None,
            "worst_position": min(by_position) if has_gold else None,
        },
        "method": fmean(before),
        "method_with_reader": fmean(after),
        "reader_minus_method": improvement,
        "reader_minus_plain_mean": _difference(after, mean),
        "reader_minus_plain_best_position": _difference(after, [v[best] for v in plain]) if has_gold else None,
        "invariant": _is_invariant(lm, with_reader, held_out) if method.invariant else None,
        "supported": improvement[1] is not None and improvement[1] > 0,
    }


def _orders(example: Example, rng: random.Random) -> list[list[int]]:
    """Return orders with the gold document first, in the middle and last, or random orders without a gold document."""
    count = len(example.prompt.documents)
    if example.gold is None:
        return [rng.sample(range(count), count) for _ in range(POSITIONS)]
    others = [index for index in range(count) if index != example.gold]
    rng.shuffle(others)
    return [[*others[:at], example.gold, *others[at:]] for at in (0, count // 2, count - 1)]


def _logprob(lm: DebiasedLM, example: Example, lesson: Lesson, order: Sequence[int], method: str | Method) -> float:
    request = lm.prepare(example.prompt.reordered(order), method=method)
    target = lesson.target[: max(1, len(lesson.target) - 1)].tolist()
    return sum(logprobs_of(lm.model, request, target, lm.backend, lm.cache))


def _difference(first: Sequence[float], second: Sequence[float]) -> list[float | None]:
    """Return the mean of ``first - second`` with its interval, paired by question."""
    pairs = zip(first, second, strict=True)
    return share({f"{index:06}": a - b for index, (a, b) in enumerate(pairs)}).as_list()


def _is_invariant(lm: DebiasedLM, method: Method, held_out: Sequence[tuple[Example, Lesson]]) -> bool:
    """Whether ``CHECKED`` held-out prompts have bit-identical log-probabilities in ``ORDERS`` random orders."""
    for index, (example, lesson) in enumerate(held_out[:CHECKED]):
        rng, count = random.Random(index), len(example.prompt.documents)
        orders = [rng.sample(range(count), count) for _ in range(ORDERS)]
        if len({_logprob(lm, example, lesson, order, method) for order in orders}) > 1:
            return False
    return True
