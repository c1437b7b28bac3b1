"""Interventions from text: ``hide(queries=question,keys=gold)``, ``shift(span=(400,600),by=-200)``."""

from __future__ import annotations

from ragbias.checks import check_parameters
from ragbias.display import did_you_mean, shown
from ragbias.errors import MethodError
from ragbias.interventions.attention_weights import HideKeys, ScaleAttention, ScaleInitialToken
from ragbias.interventions.base import Intervention
from ragbias.interventions.channels import AddToChannel, ScaleChannel
from ragbias.interventions.positions import ShiftPositions
from ragbias.methods.parse import name_and_values, split, without_blanks

KINDS: dict[str, type[Intervention]] = {
    kind.name: kind
    for kind in (HideKeys, ShiftPositions, ScaleChannel, AddToChannel, ScaleAttention, ScaleInitialToken)
}


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
    try:
        check_parameters(name, KINDS[name], values)
        return KINDS[name](**values)
    except MethodError as error:
        raise MethodError(f"intervention {label!r}: {error}") from error


def _check_known(name: str) -> None:
    if name not in KINDS:
        hint = did_you_mean(name, KINDS)
        raise MethodError(f"unknown intervention {name!r}; {hint}known interventions: {', '.join(KINDS)}")
