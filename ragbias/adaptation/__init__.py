"""Train reader adapters, small LoRAs that act only on the tokens after the documents.

``run`` draws ``examples``, stores the plain model's answers (``teacher``), trains the LoRA (``training``) and compares
the log-probabilities of answers to held-out questions with and without the LoRA (``receipt``).
"""

from ragbias import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
