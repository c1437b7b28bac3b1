"""Remove position bias from retrieval-augmented generation with Hugging Face models."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
__version__ = "0.1.0"
