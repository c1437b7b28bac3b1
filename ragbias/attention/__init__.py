"""Attention over segments of keys at assigned positions, the basis of all methods that change attention."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
