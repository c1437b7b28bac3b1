"""Attention over segments of keys at assigned positions, from which all methods are composed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragbias.attention.keys import (
        Alibi,
        EncodedKeys,
        Encoding,
        Group,
        KeyRanges,
        Rotary,
        Scoring,
        Segments,
        concatenated,
        rotate,
    )
    from ragbias.attention.mass import document_mass, segment_mass
    from ragbias.attention.primitive import attend, attend_groups, grouped_scores, merge, segment_scores, weigh

__all__ = [
    "Alibi",
    "EncodedKeys",
    "Encoding",
    "Group",
    "KeyRanges",
    "Rotary",
    "Scoring",
    "Segments",
    "attend",
    "attend_groups",
    "concatenated",
    "document_mass",
    "grouped_scores",
    "merge",
    "rotate",
    "segment_mass",
    "segment_scores",
    "weigh",
]
_MODULES = ("keys", "primitive", "mass")


def __getattr__(name: str) -> Any:  # torch is imported on first use
    if name in __all__:
        modules = (import_module(f"ragbias.attention.{module}") for module in _MODULES)
        globals()[name] = next(getattr(module, name) for module in modules if hasattr(module, name))
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
