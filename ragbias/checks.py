"""Checks of arguments and of cancellation. Errors name the value and the expected values."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeGuard

from ragbias.display import did_you_mean, shown
from ragbias.errors import ArgumentError, CancelledError, MethodError, RagBiasError, WrongTypeError

FLOAT32_MAX = 3.4028234663852886e38


class Bounds(NamedTuple):
    """The numbers from ``least`` to ``most``, including both. ``excludes_least`` excludes ``least``."""

    least: float
    most: float
    excludes_least: bool = False

    def __str__(self) -> str:
        return f"{self.least:,} to {self.most:,}"

    def include(self, value: float) -> bool:
        """Whether the range contains the number ``value``."""
        return self.least <= value <= self.most and not (self.excludes_least and value == self.least)

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the schema with which pydantic checks the bounds of a field ``Annotated[int, bounds]``."""
        return {**handler(source), "gt" if self.excludes_least else "ge": self.least, "le": self.most}


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number of Python or NumPy, but not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy, but not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_between(
    name: str, value: float, bounds: Bounds, error: type[RagBiasError] = MethodError, *, whole: bool = False
) -> None:
    """Raise ``error`` unless ``value`` is a number within the bounds. With ``whole``, it must be an integer."""
    is_valid = is_whole(value) if whole else is_number(value)
    if not is_valid or not bounds.include(value):
        raise error(f"{name}={shown(value)}; expected a {'whole ' if whole else ''}number from {bounds}")


check_whole_between = partial(check_between, whole=True)


def check_whole(name: str, value: int, least: int, error: type[RagBiasError] = MethodError) -> None:
    """Raise ``error`` unless ``value`` is an integer and at least ``least``."""
    if not is_whole(value) or value < least:
        raise error(f"{name}={shown(value)}; expected a whole number >= {least}")


def check_choice(
    name: str, value: str, choices: Sequence[str], meaning: str = "", error: type[RagBiasError] = MethodError
) -> None:
    """Raise ``error`` unless ``value`` is one of ``choices``. ``meaning`` explains the choices in the error."""
    if value not in choices:
        expected = ", ".join(map(repr, choices)) + (f" ({meaning})" if meaning else "")
        raise error(f"{name}={shown(value)}; expected one of {expected}")


def check_parameters(method: str, of: Callable[..., object], given: Collection[str], or_else: str = "") -> None:
    """Raise ``MethodError`` for unknown or missing parameters of class ``of``. ``or_else`` ends the message."""
    known = inspect.signature(of).parameters
    if unknown := [name for name in given if name not in known]:
        raise MethodError(f"unknown parameter {unknown[0]!r}; parameters of {method!r}: {', '.join(known) or 'none'}")
    required = [parameter.name for parameter in known.values() if parameter.default is parameter.empty]
    if missing := [name for name in required if name not in given]:
        raise MethodError(f"{', '.join(missing)} missing; give all of {', '.join(required)}{or_else}")


def check_each_once(name: str, order: Collection[int], count: int, error: type[RagBiasError] = MethodError) -> None:
    """Raise ``error`` unless ``order`` is a permutation of the indices below ``count``."""
    if not isinstance(order, Collection) or len(order) != count or set(order) != set(range(count)):
        raise error(f"{name}={shown(order)}; expected each index below {count} once")


def check_channel_exists(name: str, channel: int | Sequence[int], hidden_size: int) -> None:
    """Raise ``MethodError`` if a channel index is too large for hidden states of this size."""
    if max(channel if isinstance(channel, Sequence) else [channel]) >= hidden_size:
        raise MethodError(
            f"{name}={channel}, but the hidden state has {hidden_size} channels; expected 0 to {hidden_size - 1}"
        )


def check_event(cancelled: threading.Event | None) -> None:
    """Raise ``WrongTypeError`` unless ``cancelled`` is an event or None."""
    if cancelled is not None and not callable(getattr(cancelled, "is_set", None)):
        raise WrongTypeError(f"cancelled={cancelled!r}; expected a threading.Event, or None")


def check_not_cancelled(cancelled: threading.Event | None) -> None:
    """Raise ``CancelledError`` if the event is set."""
    if cancelled is not None and cancelled.is_set():
        raise CancelledError("the request was cancelled before its answer began")


def check_dict(name: str, value: object) -> None:
    """Raise ``WrongTypeError`` unless ``value`` is a dict or None."""
    if value is not None and not isinstance(value, Mapping):
        raise WrongTypeError(f"{name}={shown(value)}; expected a dict of arguments, or None")


def check_text(name: str, text: str) -> None:
    """Raise ``WrongTypeError`` if ``text`` is not a string, and ``ArgumentError`` if it contains a lone surrogate."""
    if not isinstance(text, str):
        raise WrongTypeError(f"{name} is {shown(text)}; expected a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{name} contains {text[error.start]!r}, half of a surrogate pair, at character {error.start}; expected "
            "text that UTF-8 can encode, e.g. text.encode('utf-8', 'replace').decode()"
        ) from error


def check_names(given: Iterable[str], known: Container[str], similar: Collection[str]) -> None:
    """Raise ``ArgumentError`` for a name that is not ``known``. Suggest the closest name in ``similar``."""
    if unknown := sorted(name for name in given if name not in known):
        hint = did_you_mean(unknown[0], similar) or "leave it out"
        raise ArgumentError(f"unknown argument {unknown[0]!r}; {hint.strip()}")
