"""The embedded model: a small Llama that answers questions over retrieved passages and loses the middle of them.

Its position bias is learned, not scripted: in its training data the answer usually stands at either end. See
`RESULTS.md` for what it reaches and `train.py` for how it was made.
"""

from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """The folder with weights, configuration, tokenizer and chat template, as `from_pretrained` wants it."""
    return Path(__file__).parent / "weights" / "tiny"
