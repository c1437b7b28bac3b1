"""Loading a model that is to be served."""

from __future__ import annotations

from pathlib import Path

import torch

from ragbias.cache import DocumentCache
from ragbias.cache.document_cache import MEMORY
from ragbias.evaluation.model_loading import refused_in_one_line
from ragbias.lm import DebiasedLM


def document_cache(folder: str | Path | None, memory: str | None) -> DocumentCache | None:
    """Where a served model keeps documents: in a folder, in so much memory, or both; neither: nowhere.

    Raises:
        ArgumentError: as of ``DocumentCache``.
    """
    if folder is None and memory is None:
        return None
    return DocumentCache(memory=memory or MEMORY, folder=folder)


def load_served(
    name: str,
    method: str = "pine",
    dtype: str = "auto",
    device: str | None = None,
    strip_numbering: bool = False,
    cache: DocumentCache | None = None,
) -> DebiasedLM:
    """A model with its tokenizer, on the GPU if there is one and no device is named.

    Raises:
        RunError: it cannot be loaded; names the model.
        UnknownMethodError, MethodError: of ``method``.
    """
    if device is None and torch.cuda.is_available():
        device = "cuda"
    with refused_in_one_line(name):
        return DebiasedLM.from_pretrained(
            name, method, dtype=dtype, device=device, strip_numbering=strip_numbering, cache=cache
        )
