"""Checks of parameters, whose errors name the value and what was expected; and of a request's cancellation."""

from __future__ import annotations

import difflib
import inspect
import threading
from collections.abc import Callable, Collection, Sequence
from numbers import Real
from typing import Any, NamedTuple

from ragbias.errors import CancelledError, MethodError, RagBiasError, WrongTypeError

FLOAT32_MAX = 3.4028234663852886e38
LONGEST = 60  # characters of a wrong value that are shown


class Bounds(NamedTuple):
    """The least and the greatest number that is taken, both included."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:,} to {self.most:,}"


CHANNEL = Bounds(0, 1_000_000)  # of any hidden state


def shown(value: Any) -> str:
    """A wrong value in an error, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


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


def did_you_mean(name: str, known: Collection[str]) -> str:
    """``did you mean 'pine'? `` for an unknown name that is like a known one, else nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


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
