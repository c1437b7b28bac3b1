"""The embedded model: a small Llama that answers questions over retrieved passages and loses the middle of them.

Its position bias is learned, not scripted: in its training data the answer usually stands at either end. `training/` in
the repository holds how it was made and what it reaches; `world` is what its questions are about.
"""

from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """The folder with weights, configuration, tokenizer and chat template, as `from_pretrained` wants it."""
    return Path(__file__).parent / "weights" / "tiny"
