"""Interventions inside a model from the papers' analyses."""

from ragbias.interventions.attention_weights import HideKeys, ScaleAttention, ScaleInitialToken
from ragbias.interventions.base import Intervention
from ragbias.interventions.channels import AddToChannel, ScaleChannel
from ragbias.interventions.intervened import Intervened
from ragbias.interventions.parse import parse_interventions
from ragbias.interventions.positions import ShiftPositions

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
