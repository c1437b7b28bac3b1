"""Loading a model that is to be served."""

from __future__ import annotations

from typing import Any

import torch

from ragbias.lm import DebiasedLM


def load_served(
    name: str, method: str = "pine", dtype: str = "auto", device: str | None = None, strip_numbering: bool = False
) -> DebiasedLM:
    """A model with its tokenizer, on the GPU if there is one and no device is named.

    The errors are those of ``DebiasedLM.from_pretrained``.
    """
    if device is None and torch.cuda.is_available():
        device = "cuda"
    given: dict[str, Any] = {"method": method, "dtype": dtype, "device": device, "strip_numbering": strip_numbering}
    return DebiasedLM.from_pretrained(name, **given)  # a document cache goes here
