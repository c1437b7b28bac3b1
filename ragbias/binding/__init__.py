"""Attach a method to an unmodified transformers model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragbias.binding.hooks import attach, backend_of, copied_cache, debias

__all__ = ["attach", "backend_of", "copied_cache", "debias"]


def __getattr__(name: str) -> Any:  # torch and transformers are imported on first use
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module("ragbias.binding.hooks"), name)
    return globals()[name]
