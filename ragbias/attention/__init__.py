"""Attention over segments of keys at assigned positions, from which all methods are composed."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
