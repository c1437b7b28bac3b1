"""Interventions from text: ``hide(queries=question,keys=gold)``, ``shift(span=(400,600),by=-200)``."""

from __future__ import annotations

import difflib
import inspect

from ragbias.checks import shown
from ragbias.errors import MethodError
from ragbias.interventions.kinds import KINDS, Intervention
from ragbias.methods.parse import name_and_values, split, without_blanks


def parse_interventions(text: str) -> tuple[Intervention, ...]:
    """The interventions of a text, which act together where several are joined by ``+``.

    Args:
        text: names with parameters, values as of ``ragbias.methods.get``: Python literals, or words without quotes.

    Raises:
        MethodError: the text is no such thing, or a name or a parameter is unknown, missing or out of range.
    """
    if not isinstance(text, str):
        raise MethodError(f"an intervention is written as text, got {shown(text)}")
    return tuple(_single(label) for label in split(without_blanks(text), "+", text))


def _single(label: str) -> Intervention:
    name, values = name_and_values(label, "intervention", _check_known)
    parameters = inspect.signature(KINDS[name]).parameters
    if unknown := [each for each in values if each not in parameters]:
        raise MethodError(
            f"intervention {label!r}: unknown parameter {unknown[0]!r}; parameters of {name!r}: {', '.join(parameters)}"
        )
    required = [each.name for each in parameters.values() if each.default is each.empty]
    if missing := [each for each in required if each not in values]:
        raise MethodError(f"intervention {label!r}: {', '.join(missing)} missing; give all of {', '.join(required)}")
    try:
        return KINDS[name](**values)
    except MethodError as error:
        raise MethodError(f"intervention {label!r}: {error}") from error


def _check_known(name: str) -> None:
    if name not in KINDS:
        close = difflib.get_close_matches(name, KINDS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise MethodError(f"unknown intervention {name!r}; {hint}known interventions: {', '.join(KINDS)}")
