"""Attention over segments of keys at assigned positions, from which all methods are composed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragbias.attention.encoding import Alibi, Encoding, Rotary, rotate
    from ragbias.attention.keys import Bounds, EncodedKeys, Group, Scoring, Segments, concatenated
    from ragbias.attention.mass import document_mass, segment_mass
    from ragbias.attention.primitive import attend, attend_groups, grouped_scores, merge, segment_scores, weigh

__all__ = [
    "Alibi",
    "Bounds",
    "EncodedKeys",
    "Encoding",
    "Group",
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
_MODULES = {
    **dict.fromkeys(("Alibi", "Encoding", "Rotary", "rotate"), "encoding"),
    **dict.fromkeys(("Bounds", "EncodedKeys", "Group", "Scoring", "Segments", "concatenated"), "keys"),
    **dict.fromkeys(("document_mass", "segment_mass"), "mass"),
    **dict.fromkeys(("attend", "attend_groups", "grouped_scores", "merge", "segment_scores", "weigh"), "primitive"),
}


def __getattr__(name: str) -> Any:  # torch is imported on first use
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ragbias.attention.{_MODULES[name]}"), name)
