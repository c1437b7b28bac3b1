"""Interventions of the papers' analyses: change one thing inside a model, and see what of its behaviour follows."""

from ragbias.interventions.intervened import Intervened
from ragbias.interventions.kinds import (
    AddToChannel,
    HideKeys,
    Intervention,
    ScaleAttention,
    ScaleChannel,
    ScaleInitialToken,
    ShiftPositions,
)
from ragbias.interventions.parse import parse_interventions

__all__ = [
    "AddToChannel",
    "HideKeys",
    "Intervened",
    "Intervention",
    "ScaleAttention",
    "ScaleChannel",
    "ScaleInitialToken",
    "ShiftPositions",
    "parse_interventions",
]
