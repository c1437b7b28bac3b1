"""Train reader adapters, small LoRAs that act only on the tokens after the documents.

``run`` draws training prompts (``examples``), stores the plain model's answers (``teacher``) and trains the LoRA
(``training``). For each held-out question, it compares the answer's log-probabilities with and without the LoRA
(``receipt``).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
