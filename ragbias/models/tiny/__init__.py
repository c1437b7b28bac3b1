"""The embedded model ``tiny``: a small Llama that answers questions about passages, and often misses middle passages.

This position bias is from its training data, in which the answer is usually near either end. The repository has the
training code and results in ``training/``. ``ragbias.models.tiny.world`` generates the questions.
"""

from pathlib import Path


def path() -> Path:
    """Return the folder with weights, configuration, tokenizer and chat template, for ``from_pretrained``."""
    return Path(__file__).parent / "weights" / "tiny"
