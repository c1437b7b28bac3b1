"""The receipt of a reader adapter: how it changes the log-probability of answers to held-out questions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ragbias.adaptation.examples import Example
from ragbias.adaptation.teacher import Lesson
from ragbias.data.intervals import share
from ragbias.generation.scoring import logprobs_of
from ragbias.lm import DebiasedLM
from ragbias.methods import Method

POSITIONS = 3  # number of gold positions, or of random orders if gold is unknown
INVARIANCE_PROMPTS, INVARIANCE_ORDERS = 2, 6  # for the check of invariance


def make_receipt(
    lm: DebiasedLM,
    method: Method,
    reader: str,
    held_out: Sequence[tuple[Example, Lesson]],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Compare the plain model, the method, and the method with its reader on held-out examples.

    Log-probabilities are in nats. If the right answers are unknown, the plain model's answers replace them. A gain then
    means that the method is closer to the plain model, not more accurate. ``supported`` is true if the 95% interval of
    the reader's gain over the method is above zero. ``progress`` receives the number of finished examples.
    """
    with_reader = replace(method, reader=reader)
    plain, before, after = [], [], []
    for index, (example, lesson) in enumerate(held_out):
        orders = _orders(example, random.Random(index))
        plain.append([_logprob(lm, example, lesson, order, "none") for order in orders])
        if method.invariant:
            orders = orders[:1]
        before.append(fmean(_logprob(lm, example, lesson, order, method) for order in orders))
        after.append(fmean(_logprob(lm, example, lesson, order, with_reader) for order in orders))
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
    """Return orders with the gold document first, in the middle and last, or random orders if it is unknown."""
    count = len(example.prompt.documents)
    if example.gold is None:
        return [rng.sample(range(count), count) for _ in range(POSITIONS)]
    others = [index for index in range(count) if index != example.gold]
    rng.shuffle(others)
    return [[*others[:index], example.gold, *others[index:]] for index in (0, count // 2, count - 1)]


def _logprob(lm: DebiasedLM, example: Example, lesson: Lesson, order: Sequence[int], method: str | Method) -> float:
    request = lm.prepare(example.prompt.reordered(order), method=method)
    target = lesson.target[: max(1, len(lesson.target) - 1)].tolist()
    return sum(logprobs_of(lm.loaded, request, target))


def _difference(first: Sequence[float], second: Sequence[float]) -> list[float | None]:
    """Return the mean of the paired differences ``first - second``, with its 95% interval."""
    pairs = zip(first, second, strict=True)
    return share({f"{index:06}": a - b for index, (a, b) in enumerate(pairs)}).as_list()


def _is_invariant(lm: DebiasedLM, method: Method, held_out: Sequence[tuple[Example, Lesson]]) -> bool:
    """Whether answers have bit-identical log-probabilities for several random orders of the documents."""
    for index, (example, lesson) in enumerate(held_out[:INVARIANCE_PROMPTS]):
        rng, count = random.Random(index), len(example.prompt.documents)
        orders = [rng.sample(range(count), count) for _ in range(INVARIANCE_ORDERS)]
        if len({_logprob(lm, example, lesson, order, method) for order in orders}) > 1:
            return False
    return True
