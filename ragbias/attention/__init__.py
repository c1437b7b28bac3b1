"""Attention over segments of keys at assigned positions; everything else is composed from it."""

from ragbias.attention.encoding import Alibi, Encoding, Rotary, rotate
from ragbias.attention.primitive import (
    Scoring,
    attend,
    causal_mask,
    grouped_scores,
    merge,
    placed_scores,
    segment_mass,
    weigh,
)

__all__ = [
    "Alibi",
    "Encoding",
    "Rotary",
    "Scoring",
    "attend",
    "causal_mask",
    "grouped_scores",
    "merge",
    "placed_scores",
    "rotate",
    "segment_mass",
    "weigh",
]
