"""Attention over segments of keys at assigned positions. All methods build on it."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
