"""Loading a model by name; one that cannot be loaded is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ragbias.cache import DocumentCache
from ragbias.display import did_you_mean
from ragbias.errors import RagBiasError, RunError
from ragbias.files import irregular
from ragbias.lm import DebiasedLM
from ragbias.models.gguf import is_gguf
from ragbias.models.named import EXPECTED, NAMES

CONFIGS = ("config.json", "adapter_config.json")  # of a model, and of an adapter, which names its model


def load_model(name: str, method: str = "none", dtype: str = "auto", cache: DocumentCache | None = None) -> DebiasedLM:
    """A model with its tokenizer.

    Raises:
        RunError: it cannot be loaded: it is not there, or a file of it is damaged; names the model.
        UnknownMethodError, MethodError: of ``method``.
    """
    with refused_in_one_line(name):
        return DebiasedLM.from_pretrained(name, method=method, dtype=dtype, cache=cache)


@contextmanager
def refused_in_one_line(name: str) -> Iterator[None]:
    """While a model is loaded: whatever is wrong with it is a ``RunError`` that names the model."""
    refuse_irregular(name)
    try:
        yield
    except (RagBiasError, ImportError):
        raise
    except Exception as error:  # a damaged file raises whatever its reader does
        reason = str(error).split("\n")[0] or "no reason given"
        raise RunError(
            f"model {name!r} cannot be loaded ({type(error).__name__}: {reason}); {did_you_mean(name, NAMES)}expected "
            f"{EXPECTED}, with whole files of weights, config and tokenizer"
        ) from error


def refuse_irregular(name: str) -> None:
    """Raise ``RunError`` where a model's name is a file, or a folder without one or with something else, as a pipe.

    A GGUF file is a model; of a folder of them ``local_path`` says that one is to be named.
    """
    if name in NAMES:
        return
    kind = irregular(Path(name))
    if Path(name).exists() and not Path(name).is_dir() and (kind or not is_gguf(name)):
        raise RunError(f"model {name!r} is {kind or 'a file'}; expected {EXPECTED}")
    if Path(name).is_dir():
        for path in sorted(Path(name).iterdir()):
            if not path.is_dir() and (kind := irregular(path)):
                raise RunError(f"model {name!r}: {path} is {kind}; expected a folder of regular files")
        if not any(Path(name, config).is_file() for config in CONFIGS) and not any(Path(name).glob("*.gguf")):
            raise RunError(f"model {name!r} cannot be loaded: the folder holds no {CONFIGS[0]}; expected {EXPECTED}")


def load_onto_gpu(name: str, dtype: str = "auto") -> DebiasedLM:
    """As ``load_model``, without a method, and on the GPU if there is one."""
    lm = load_model(name, dtype=dtype)
    if torch.cuda.is_available():
        torch.nn.Module.cuda(lm.model)
    return lm
