"""The methods, by name."""

from __future__ import annotations

from ragbias.errors import UnknownMethodError
from ragbias.methods.attention_sorting import AttentionSorting
from ragbias.methods.base import AttentionMethod, Method, ReorderingMethod
from ragbias.methods.canonical_order import CanonicalOrder
from ragbias.methods.channel_scaling import ChannelScaling
from ragbias.methods.long_context_reorder import LongContextReorder
from ragbias.methods.none import NoMethod
from ragbias.methods.pine import Pine

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (NoMethod, Pine, ChannelScaling, AttentionSorting, LongContextReorder, CanonicalOrder)
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
    if method not in METHODS:
        raise UnknownMethodError(f"unknown method {method!r}; known methods: {', '.join(METHODS)}")
    if method == ChannelScaling.name:
        return ChannelScaling.from_profile(model_name or "(unnamed model)")
    return METHODS[method]()


__all__ = [
    "METHODS",
    "AttentionMethod",
    "AttentionSorting",
    "CanonicalOrder",
    "ChannelScaling",
    "LongContextReorder",
    "Method",
    "NoMethod",
    "Pine",
    "ReorderingMethod",
    "get",
]
