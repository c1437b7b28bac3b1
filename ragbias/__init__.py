"""Removal of position bias for retrieval-augmented generation with Hugging Face models."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would double the import time of this module

if TYPE_CHECKING:
    from typing import Any

    from ragbias.adaptation.run import adapt as adapt
    from ragbias.binding.hooks import debias as debias
    from ragbias.boundaries import documents as documents
    from ragbias.cache import DocumentCache as DocumentCache
    from ragbias.errors import RagBiasError as RagBiasError
    from ragbias.generation.ranking import rank as rank
    from ragbias.generation.report import Generation as Generation
    from ragbias.generation.report import Report as Report
    from ragbias.generation.report import Score as Score
    from ragbias.lm import DebiasedLM as DebiasedLM
    from ragbias.prompt import Prompt as Prompt

__version__ = "0.1.0"

_MODULES = {
    "DebiasedLM": "ragbias.lm",
    "DocumentCache": "ragbias.cache",
    "Generation": "ragbias.generation.report",
    "Prompt": "ragbias.prompt",
    "RagBiasError": "ragbias.errors",
    "Report": "ragbias.generation.report",
    "Score": "ragbias.generation.report",
    "adapt": "ragbias.adaptation.run",
    "debias": "ragbias.binding.hooks",
    "documents": "ragbias.boundaries",
    "rank": "ragbias.generation.ranking",
}
__all__ = [*_MODULES]
_SUBMODULES = ("attention", "binding", "boundaries", "cache", "errors", "generation", "lm", "methods", "prompt")


def __getattr__(name: str) -> Any:
    # `ragbias --help` must not wait for torch and transformers
    from importlib import import_module

    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES, "__version__"})
