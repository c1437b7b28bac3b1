"""The methods, one small file each; ``base`` and ``call`` define their interface, ``parse`` reads them from text."""

from ragbias.methods.adaptive_parallel_encoding import AdaptiveParallelEncoding
from ragbias.methods.attention_sorting import AttentionSorting
from ragbias.methods.base import AttentionMethod, Method, Ranking, ReorderingMethod
from ragbias.methods.canonical_order import CanonicalOrder
from ragbias.methods.channel_scaling import ChannelScaling
from ragbias.methods.compose import Compose
from ragbias.methods.in_context_reranking import InContextReranking
from ragbias.methods.long_context_reorder import LongContextReorder
from ragbias.methods.ms_poe import MsPoE
from ragbias.methods.no_inter_document_attention import NoInterDocumentAttention
from ragbias.methods.no_positions import NoPositions
from ragbias.methods.parallel_context_windows import ParallelContextWindows
from ragbias.methods.parallel_experts import ParallelExperts
from ragbias.methods.parse import get
from ragbias.methods.permutation_vote import PermutationVote
from ragbias.methods.pine import Pine
from ragbias.methods.plain import NoMethod, Segmented
from ragbias.methods.position_interpolation import PositionInterpolation
from ragbias.methods.registry import DEFAULT_METHOD, METHODS, method_class, method_names
from ragbias.methods.rotor import RoToR
from ragbias.methods.self_extend import SelfExtend
from ragbias.methods.siw import SIW
from ragbias.methods.structured_prompting import StructuredPrompting

__all__ = [
    "DEFAULT_METHOD",
    "METHODS",
    "SIW",
    "AdaptiveParallelEncoding",
    "AttentionMethod",
    "AttentionSorting",
    "CanonicalOrder",
    "ChannelScaling",
    "Compose",
    "InContextReranking",
    "LongContextReorder",
    "Method",
    "MsPoE",
    "NoInterDocumentAttention",
    "NoMethod",
    "NoPositions",
    "ParallelContextWindows",
    "ParallelExperts",
    "PermutationVote",
    "Pine",
    "PositionInterpolation",
    "Ranking",
    "ReorderingMethod",
    "RoToR",
    "Segmented",
    "SelfExtend",
    "StructuredPrompting",
    "get",
    "method_class",
    "method_names",
]
