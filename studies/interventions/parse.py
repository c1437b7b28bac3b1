"""Parse interventions, such as ``hide(queries=question,keys=gold)`` or ``shift(span=(400,600),by=-200)``."""

from __future__ import annotations

from ragbias.checks import check_parameters
from ragbias.display import did_you_mean, shown
from ragbias.errors import MethodError
from ragbias.methods.parsing import parse_call, split_outside_brackets, without_blanks
from studies.interventions.attention_weights import HideKeys, ScaleAttention, ScaleInitialToken
from studies.interventions.base import Intervention
from studies.interventions.channels import AddToChannel, ScaleChannel
from studies.interventions.positions import ShiftPositions

KINDS: dict[str, type[Intervention]] = {
    kind.name: kind
    for kind in (HideKeys, ShiftPositions, ScaleChannel, AddToChannel, ScaleAttention, ScaleInitialToken)
}


def parse_interventions(text: str) -> tuple[Intervention, ...]:
    """Parse a text with one or more interventions, joined by ``+``.

    Args:
        text: names with parameters, in the syntax of ``ragbias.methods.get``.

    Raises:
        MethodError: the text is malformed, or a name or a parameter is unknown, missing or out of range.
    """
    if not isinstance(text, str):
        raise MethodError(f"expected interventions as text, got {shown(text)}")
    return tuple(_parse_one(label) for label in split_outside_brackets(without_blanks(text), "+", text))


def _parse_one(label: str) -> Intervention:
    found, values = parse_call(label, "intervention", _find_class)
    try:
        check_parameters(found.name, found, values)
        return found(**values)
    except MethodError as error:
        raise MethodError(f"intervention {label!r}: {error}") from error


def _find_class(name: str) -> type[Intervention]:
    if name not in KINDS:
        hint = did_you_mean(name, KINDS)
        raise MethodError(f"unknown intervention {name!r}; {hint}known interventions: {', '.join(KINDS)}")
    return KINDS[name]
