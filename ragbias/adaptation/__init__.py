"""Train reader adapters: a small LoRA on the tokens after the documents, see ``ragbias.readers``."""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
