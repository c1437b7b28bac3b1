"""Loading a model by name; one that cannot be loaded is refused in one line."""

from __future__ import annotations

import torch

from ragbias.errors import RagBiasError, RunError
from ragbias.lm import DebiasedLM


def load_model(name: str, method: str = "none", dtype: str = "auto") -> DebiasedLM:
    """A model with its tokenizer.

    Raises:
        RunError: it cannot be loaded: it is not there, or a file of it is damaged; names the model.
        UnknownMethodError, MethodError: of ``method``.
    """
    try:
        return DebiasedLM.from_pretrained(name, method=method, dtype=dtype)
    except (RagBiasError, ImportError):
        raise
    except Exception as error:  # a damaged file raises whatever its reader does
        reason = str(error).split("\n")[0] or "no reason given"
        raise RunError(
            f"model {name!r} cannot be loaded ({type(error).__name__}: {reason}); expected 'tiny', a hub name, or a "
            "folder with whole files of weights, config and tokenizer"
        ) from error


def load_onto_gpu(name: str, dtype: str = "auto") -> DebiasedLM:
    """As ``load_model``, without a method, and on the GPU if there is one."""
    lm = load_model(name, dtype=dtype)
    if torch.cuda.is_available():
        torch.nn.Module.cuda(lm.model)
    return lm
