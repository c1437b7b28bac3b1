"""Attention over segments of keys at assigned positions; everything else is composed from it."""

from ragbias.attention.encoding import Alibi, Encoding, Rotary, rotate
from ragbias.attention.keys import Bounds, EncodedKeys, Group, Scoring, Segments, concatenated
from ragbias.attention.mass import document_mass, segment_mass
from ragbias.attention.primitive import attend, attend_groups, grouped_scores, merge, placed_scores, weigh

__all__ = [
    "Alibi",
    "Bounds",
    "EncodedKeys",
    "Encoding",
    "Group",
    "Rotary",
    "Scoring",
    "Segments",
    "attend",
    "attend_groups",
    "concatenated",
    "document_mass",
    "grouped_scores",
    "merge",
    "placed_scores",
    "rotate",
    "segment_mass",
    "weigh",
]
