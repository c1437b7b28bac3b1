"""Generate answers: arguments, requests, decoding, scoring, voting, and reports."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
