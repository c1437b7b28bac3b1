"""From a prompt to an answer: arguments, requests, decoding, scoring, voting, and the report of what ran."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
