"""The embedded model: a small Llama that answers questions over retrieved passages and misses those in the middle.

Its position bias is learned: in its training data the answer is usually at either end. ``training/`` in the repository
holds its training code and results; ``world`` generates its questions.
"""

from pathlib import Path


def path() -> Path:
    """Return the folder with weights, configuration, tokenizer and chat template, for ``from_pretrained``."""
    return Path(__file__).parent / "weights" / "tiny"
