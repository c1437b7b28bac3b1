"""Training-free removal of position bias for retrieval-augmented generation with Hugging Face models."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would double the import time of this module

if TYPE_CHECKING:
    from typing import Any

    from ragbias.binding import debias
    from ragbias.boundaries import documents
    from ragbias.cache import DocumentCache
    from ragbias.errors import RagBiasError
    from ragbias.generation.ranking import rank
    from ragbias.generation.report import Generation, Report, Score
    from ragbias.lm import DebiasedLM
    from ragbias.prompt import Prompt

__all__ = [
    "DebiasedLM",
    "DocumentCache",
    "Generation",
    "Prompt",
    "RagBiasError",
    "Report",
    "Score",
    "debias",
    "documents",
    "rank",
]
__version__ = "0.1.0"

_MODULES = {
    "DebiasedLM": "ragbias.lm",
    "DocumentCache": "ragbias.cache",
    "Generation": "ragbias.generation.report",
    "Prompt": "ragbias.prompt",
    "RagBiasError": "ragbias.errors",
    "Report": "ragbias.generation.report",
    "Score": "ragbias.generation.report",
    "debias": "ragbias.binding",
    "documents": "ragbias.boundaries",
    "rank": "ragbias.generation.ranking",
}
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
