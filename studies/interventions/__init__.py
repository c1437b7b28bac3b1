"""Interventions inside a model from the papers' analyses."""

from studies.interventions.attention_weights import HideKeys, ScaleAttention, ScaleInitialToken
from studies.interventions.base import Intervention
from studies.interventions.channels import AddToChannel, ScaleChannel
from studies.interventions.intervened import Intervened
from studies.interventions.parse import parse_interventions
from studies.interventions.positions import ShiftPositions

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
