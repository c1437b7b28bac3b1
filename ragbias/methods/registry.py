"""The methods by name: those of this package and those of other distributions.

Another distribution registers a method in the entry point group ``ragbias.methods``, under the method's name::

    [project.entry-points."ragbias.methods"]
    my-method = "my_package:MyMethod"
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from ragbias.display import did_you_mean
from ragbias.errors import MethodError, UnknownMethodError
from ragbias.methods.adaptive_parallel_encoding import AdaptiveParallelEncoding
from ragbias.methods.attention_sorting import AttentionSorting
from ragbias.methods.base import Method
from ragbias.methods.canonical_order import CanonicalOrder
from ragbias.methods.channel_scaling import ChannelScaling
from ragbias.methods.in_context_reranking import InContextReranking
from ragbias.methods.long_context_reorder import LongContextReorder
from ragbias.methods.ms_poe import MsPoE
from ragbias.methods.no_inter_document_attention import NoInterDocumentAttention
from ragbias.methods.no_positions import NoPositions
from ragbias.methods.parallel_context_windows import ParallelContextWindows
from ragbias.methods.parallel_experts import ParallelExperts
from ragbias.methods.permutation_vote import PermutationVote
from ragbias.methods.pine import Pine
from ragbias.methods.plain import NoMethod, Segmented
from ragbias.methods.position_interpolation import PositionInterpolation
from ragbias.methods.rotor import RoToR
from ragbias.methods.self_extend import SelfExtend
from ragbias.methods.siw import SIW
from ragbias.methods.structured_prompting import StructuredPrompting

GROUP = "ragbias.methods"
DEFAULT_METHOD = Pine.name  # of classes, integrations and commands
DECLARED = ("acts_on", "cost", "source")  # every method declares these, and its name
METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        NoMethod,
        Segmented,
        Pine,
        RoToR,
        ChannelScaling,
        MsPoE,
        SIW,
        SelfExtend,
        PositionInterpolation,
        NoPositions,
        ParallelContextWindows,
        NoInterDocumentAttention,
        StructuredPrompting,
        AdaptiveParallelEncoding,
        AttentionSorting,
        InContextReranking,
        LongContextReorder,
        CanonicalOrder,
        PermutationVote,
        ParallelExperts,
    )
}


def method_names() -> list[str]:
    """The names of all methods, this package's first."""
    return [*METHODS, *_installed()]


def method_class(name: str) -> type[Method]:
    """The class of the method of this name.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: another distribution's method of this name is unusable.
    """
    if isinstance(name, type) and issubclass(name, Method):
        raise UnknownMethodError(f"{name.__name__} is a class; pass an instance, e.g. {name.__name__}()")
    if not isinstance(name, str):
        raise UnknownMethodError(f"expected a method's name or an instance, got {name!r}; 'none' runs the plain model")
    if name in METHODS:
        return METHODS[name]
    if name in _installed():
        return _loaded(name)
    names = method_names()
    raise UnknownMethodError(f"unknown method {name!r}; {did_you_mean(name, names)}known methods: {', '.join(names)}")


@cache
def _installed() -> dict[str, EntryPoint]:
    """Entry points of other distributions by name, without names of this package."""
    return {each.name: each for each in entry_points(group=GROUP) if each.name not in METHODS}


@cache
def _loaded(name: str) -> type[Method]:
    entry = _installed()[name]
    of = f"method {name!r} of {entry.dist.name if entry.dist else 'another distribution'} ({entry.value})"
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # a module may raise anything on import
        raise MethodError(f"{of} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise MethodError(f"{of} is {found!r}; expected a class derived from ragbias.methods.Method")
    if getattr(found, "name", None) != name:
        raise MethodError(f"{of} has the name {getattr(found, 'name', None)!r}; expected the entry point's name")
    if undeclared := [each for each in DECLARED if not isinstance(getattr(found, each, None), str)]:
        raise MethodError(f"{of} declares no {', '.join(undeclared)}; see ragbias.methods.Method")
    return found
