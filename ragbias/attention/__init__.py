"""Attention over segments of keys at assigned positions; everything else is composed from it."""

from ragbias.attention.primitive import attend, causal_mask, grouped_scores, merge, segment_mass, weigh
from ragbias.attention.rotary import Rotary, rotate

__all__ = ["Rotary", "attend", "causal_mask", "grouped_scores", "merge", "rotate", "segment_mass", "weigh"]
