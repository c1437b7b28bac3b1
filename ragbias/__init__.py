"""Training-free removal of position bias for retrieval-augmented generation with Hugging Face models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragbias.boundaries import documents
from ragbias.prompt import Prompt

if TYPE_CHECKING:
    from ragbias.binding import debias
    from ragbias.generation.ranking import rank
    from ragbias.lm import DebiasedLM

__all__ = ["DebiasedLM", "Prompt", "debias", "documents", "rank"]
__version__ = "0.1.0"

_MODULES = {"DebiasedLM": "ragbias.lm", "debias": "ragbias.binding", "rank": "ragbias.generation.ranking"}
_SUBMODULES = ("attention", "binding", "generation", "lm", "methods")


def __getattr__(name: str) -> Any:
    # torch and transformers take seconds to import, and `ragbias --help` needs neither
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
