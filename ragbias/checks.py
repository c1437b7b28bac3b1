"""Checks of parameters, whose errors name the value and what was expected; and of a request's cancellation."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Sequence
from numbers import Real
from typing import NamedTuple

from ragbias.display import shown
from ragbias.errors import CancelledError, MethodError, RagBiasError, WrongTypeError

FLOAT32_MAX = 3.4028234663852886e38


class Bounds(NamedTuple):
    """The least and the greatest number that is taken, both included."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:,} to {self.most:,}"


CHANNEL = Bounds(0, 1_000_000)  # of any hidden state

# Upper ends lie far beyond any real run: they catch a typing error before the machine runs out of memory.
SEED = Bounds(0, 2**32 - 1)  # as numpy takes them

CHUNKS = Bounds(1, 1_000)
NEW_TOKENS = Bounds(1, 100_000)
AUDIT_ORDERS = Bounds(2, 1_000)
DEMO_QUESTIONS = Bounds(2, 10_000)

QUESTIONS = Bounds(1, 10_000_000)  # of a file
DOCUMENTS = Bounds(1, 10_000)
POSITIONS = Bounds(0, DOCUMENTS.most - 1)
ORDERS = Bounds(1, 1_000)
WORDS = Bounds(5, 100_000)  # of a passage
BATCH = Bounds(1, 1_024)
WORKERS = Bounds(1, 1_024)

LAYERS = Bounds(1, 1_000)
TOKENS = Bounds(1, 1_000_000)  # of a document
PREFIX = Bounds(0, 1_000_000)  # tokens before the documents
TOTAL_TOKENS = Bounds(1, 10_000_000)
ROUNDS = Bounds(1, 1_000)
STEPS = Bounds(1, 10_000)

STRINGS = Bounds(1, 1_000_000)
STRING_LENGTH = Bounds(20, 1_000_000)  # the least leaves more points to fit and smooth than a cubic has coefficients
DRAWN_QUESTIONS = Bounds(1, 100_000)
DRAWN_DOCUMENTS = Bounds(2, 10_000)
DEPTHS = Bounds(1, 1_000)


def check_between(name: str, value: float, bounds: Bounds) -> None:
    """Raise ``MethodError`` unless ``value`` is a number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, Real) or not bounds.least <= value <= bounds.most:
        raise MethodError(f"{name}={shown(value)}; expected a number from {bounds}")


def check_whole_between(name: str, value: int, bounds: Bounds, error: type[RagBiasError] = MethodError) -> None:
    """Raise ``error`` unless ``value`` is a whole number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not bounds.least <= value <= bounds.most:
        raise error(f"{name}={shown(value)}; expected a whole number from {bounds}")


def check_finite(name: str, value: float) -> None:
    """Raise ``MethodError`` unless ``value`` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not -FLOAT32_MAX <= value <= FLOAT32_MAX:
        raise MethodError(f"{name}={shown(value)} is not a finite number")


def check_whole(name: str, value: int, least: int, error: type[RagBiasError] = MethodError) -> None:
    """Raise ``error`` unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise error(f"{name}={shown(value)}; expected a whole number >= {least}")


def check_choice(name: str, value: str, choices: Sequence[str], meaning: str = "") -> None:
    """Raise ``MethodError`` unless ``value`` is one of ``choices``; ``meaning`` says what their names do not tell."""
    if value not in choices:
        expected = ", ".join(map(repr, choices)) + (f" ({meaning})" if meaning else "")
        raise MethodError(f"{name}={shown(value)}; expected one of {expected}")


def check_parameters(name: str, of: Callable[..., object], given: Collection[str], or_else: str = "") -> None:
    """Raise ``MethodError`` unless these are names of parameters, with all among them that have no default.

    Args:
        name: of the method or intervention.
        of: its class.
        or_else: what a user may do in place of giving all.
    """
    known = inspect.signature(of).parameters
    if unknown := [each for each in given if each not in known]:
        raise MethodError(f"unknown parameter {unknown[0]!r}; parameters of {name!r}: {', '.join(known) or 'none'}")
    required = [each.name for each in known.values() if each.default is each.empty]
    if missing := [each for each in required if each not in given]:
        raise MethodError(f"{', '.join(missing)} missing; give all of {', '.join(required)}{or_else}")


def check_each_once(name: str, order: Collection[int], count: int, error: type[RagBiasError] = MethodError) -> None:
    """Raise ``error`` unless ``order`` holds each index below ``count`` once."""
    if not isinstance(order, Collection) or len(order) != count or set(order) != set(range(count)):
        raise error(f"{name}={shown(order)}; expected each index below {count} once")


def check_channel_exists(name: str, channel: int | Sequence[int], hidden_size: int) -> None:
    """Raise ``MethodError`` unless a hidden state of this size has the channel, or all of several."""
    if max([channel] if isinstance(channel, int) else channel) >= hidden_size:
        raise MethodError(
            f"{name}={channel}, but the hidden state has {hidden_size} channels; expected 0 to {hidden_size - 1}"
        )


def check_event(cancelled: threading.Event | None) -> None:
    """Raise ``WrongTypeError`` for what cannot tell whether a request was cancelled."""
    if cancelled is not None and not callable(getattr(cancelled, "is_set", None)):
        raise WrongTypeError(f"cancelled={cancelled!r}; expected a threading.Event, or None")


def check_not_cancelled(cancelled: threading.Event | None) -> None:
    """Raise ``CancelledError`` where whoever waits for the work has set this event."""
    if cancelled is not None and cancelled.is_set():
        raise CancelledError("the request was cancelled before its answer began")
