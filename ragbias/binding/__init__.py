"""Attach a method to an unmodified transformers model."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
