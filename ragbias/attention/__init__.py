"""Attention over segments of keys at assigned positions, the basis of all methods that change attention."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
