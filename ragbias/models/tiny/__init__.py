"""The embedded model ``tiny``: a small Llama that answers questions about passages, but often ignores middle passages.

The training data causes this position bias: the answer is usually in one of the first or last passages. The folder
``training/`` of the repository has the training code and results. ``ragbias.models.tiny.world`` draws the questions.
"""

from pathlib import Path


def path() -> Path:
    """Return the folder with weights, configuration, tokenizer and chat template, for ``from_pretrained``."""
    return Path(__file__).parent / "weights" / "tiny"
