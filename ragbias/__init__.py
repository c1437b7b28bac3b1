"""Remove position bias from retrieval-augmented generation with Hugging Face models."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
