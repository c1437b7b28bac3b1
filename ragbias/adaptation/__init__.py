"""Train reader adapters. A reader adapter is a small LoRA that acts only on the tokens after the documents."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
