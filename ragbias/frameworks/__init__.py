"""Code that the framework integrations share: options, recent retrievals, reports, tools, servers, event loops."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
