"""The methods, by name."""

from __future__ import annotations

import difflib

from ragbias.errors import UnknownMethodError
from ragbias.methods.attention_sorting import AttentionSorting
from ragbias.methods.base import AttentionMethod, Method, ReorderingMethod
from ragbias.methods.canonical_order import CanonicalOrder
from ragbias.methods.channel_scaling import ChannelScaling
from ragbias.methods.compose import Compose
from ragbias.methods.long_context_reorder import LongContextReorder
from ragbias.methods.ms_poe import MsPoE
from ragbias.methods.no_inter_document_attention import NoInterDocumentAttention
from ragbias.methods.none import NoMethod
from ragbias.methods.parallel_context_windows import ParallelContextWindows
from ragbias.methods.permutation_vote import PermutationVote
from ragbias.methods.pine import Pine
from ragbias.methods.position_interpolation import PositionInterpolation
from ragbias.methods.rotor import RoToR
from ragbias.methods.self_extend import SelfExtend
from ragbias.methods.siw import SIW
from ragbias.methods.structured_prompting import StructuredPrompting

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        NoMethod,
        Pine,
        RoToR,
        ChannelScaling,
        MsPoE,
        SIW,
        SelfExtend,
        PositionInterpolation,
        ParallelContextWindows,
        NoInterDocumentAttention,
        StructuredPrompting,
        AttentionSorting,
        LongContextReorder,
        CanonicalOrder,
        PermutationVote,
    )
}


def get(method: str | Method, model_name: str | None = None) -> Method:
    """The method of this name with its default parameters; an instance is returned as it is.

    Args:
        method: a name, e.g. ``"pine"``, or an instance.
        model_name: where a method has a profile per model (``"channel-scaling"``), the model it is for.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: there is no profile for this model.
    """
    if isinstance(method, Method):
        return method
    found = method_class(method)
    return ChannelScaling.from_profile(model_name or "(unnamed model)") if found is ChannelScaling else found()


def method_class(name: str) -> type[Method]:
    """The class of the method of this name.

    Raises:
        UnknownMethodError: no method has this name.
    """
    if isinstance(name, type) and issubclass(name, Method):
        raise UnknownMethodError(f"{name.__name__} is a class; pass an instance, e.g. {name.__name__}()")
    if not isinstance(name, str):
        raise UnknownMethodError(f"a method is a name or an instance, got {name!r}; 'none' runs the plain model")
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UnknownMethodError(f"unknown method {name!r}; {hint}known methods: {', '.join(METHODS)}")
    return METHODS[name]


__all__ = [
    "METHODS",
    "SIW",
    "AttentionMethod",
    "AttentionSorting",
    "CanonicalOrder",
    "ChannelScaling",
    "Compose",
    "LongContextReorder",
    "Method",
    "MsPoE",
    "NoInterDocumentAttention",
    "NoMethod",
    "ParallelContextWindows",
    "PermutationVote",
    "Pine",
    "PositionInterpolation",
    "ReorderingMethod",
    "RoToR",
    "SelfExtend",
    "StructuredPrompting",
    "get",
    "method_class",
]
