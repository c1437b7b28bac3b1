"""Code that the framework integrations share: options, recent retrievals, reports, tools, servers, event loops."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
