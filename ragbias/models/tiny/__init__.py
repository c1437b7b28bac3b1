"""The embedded model, a small Llama that answers questions about retrieved passages and overlooks the middle ones.

It learned this position bias from training data in which the answer is usually at either end. The repository has its
training code and results in ``training/``. ``world`` generates its questions.
"""

from pathlib import Path


def path() -> Path:
    """Return the folder with weights, configuration, tokenizer and chat template, for ``from_pretrained``."""
    return Path(__file__).parent / "weights" / "tiny"
