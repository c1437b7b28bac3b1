"""Generate answers to prepared requests, score continuations, and rank documents."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
