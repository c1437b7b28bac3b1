"""What a method costs by its arithmetic alone: the ratio to the plain model that no implementation can beat by much.

The prefill is counted in multiply-adds: projections, MLP, scores and weighted values of the visible pairs of query and
key, and the head on the last token. Norms, softmax, rotations and padding are not counted, and sliding windows count as
full attention. Decoding is counted in bytes, as it is bound by reading: all weights once for the batch, and the cache
of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedConfig

from ragbias.methods import (
    SIW,
    AttentionMethod,
    ChannelScaling,
    Method,
    MsPoE,
    NoMethod,
    Pine,
    PositionInterpolation,
    SelfExtend,
)
from ragbias.methods.segments import SegmentMethod
from ragbias.prompt import TokenisedPrompt

UNGATED = ("gpt_neox", "mpt")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that its arithmetic depends on.

    Attributes:
        key_heads: heads of keys and values.
        mlp_matrices: 3 where the MLP is gated, 2 where it is not.
        experts, active_experts: MLPs of a layer, and how many of them a token runs through.
    """

    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_dim: int
    layers: int
    vocabulary: int
    mlp_matrices: int = 3
    experts: int = 1
    active_experts: int = 1

    @classmethod
    def of(cls, config: PreTrainedConfig) -> ModelShape:
        """From the config of a supported family."""
        text = config.get_text_config()
        heads, hidden = text.num_attention_heads, text.hidden_size
        active = getattr(text, "num_experts_per_tok", None) or 1
        experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 1
        intermediate = (
            4 * hidden if text.model_type == "mpt" else text.intermediate_size
        )  # whatever its config's expansion_ratio says
        return cls(
            hidden=hidden,
            intermediate=getattr(text, "moe_intermediate_size", None) or intermediate,
            heads=heads,
            key_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or hidden // heads,
            layers=text.num_hidden_layers,
            vocabulary=text.vocab_size,
            mlp_matrices=2 if text.model_type in UNGATED else 3,
            experts=experts,
            active_experts=active,
        )

    @property
    def width(self) -> int:
        """Of all query heads together: multiply-adds of a score or of a weighted value, over all heads."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.key_heads * self.head_dim

    def weights(self, experts: int) -> int:
        """Weights of a layer with so many experts: multiply-adds of projections and MLP for one token."""
        projections = 2 * self.hidden * self.width + 2 * self.hidden * self.key_width
        return projections + experts * self.mlp_matrices * self.hidden * self.intermediate


@dataclass(frozen=True)
class PromptLengths:
    """Tokens before the documents, of each document, and after them."""

    prefix: int
    documents: tuple[int, ...]
    suffix: int

    @classmethod
    def of(cls, prompt: TokenisedPrompt) -> PromptLengths:
        return cls(len(prompt.prefix), tuple(map(len, prompt.documents)), len(prompt.suffix))

    @property
    def in_documents(self) -> int:
        return sum(self.documents)

    @property
    def total(self) -> int:
        return self.prefix + self.in_documents + self.suffix


def _causal(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def _pairs(layout: PromptLengths, sees_others: bool) -> int:
    """Visible pairs where a document sees the prefix, itself causally, and the other documents whole or not at all."""
    others = layout.in_documents if sees_others else 0
    documents = sum(length * (layout.prefix + max(0, others - length)) + _causal(length) for length in layout.documents)
    after = layout.suffix * (layout.prefix + layout.in_documents) + _causal(layout.suffix)
    return _causal(layout.prefix) + documents + after


def _importances(layout: PromptLengths) -> int:
    """Pairs that PINE scores without positions: of each document with all others, of the suffix with all documents."""
    total = layout.in_documents
    return sum(length * (total - length) for length in layout.documents) + layout.suffix * total


def _measures(method: Method) -> bool:
    return isinstance(method, Pine) and method.order != "none"


def plain_prefill(shape: ModelShape, layout: PromptLengths) -> int:
    """Multiply-adds of the plain model up to the first token's logits."""
    layer = layout.total * shape.weights(shape.active_experts) + 2 * shape.width * _causal(layout.total)
    return shape.layers * layer + shape.hidden * shape.vocabulary


def added_in_prefill(shape: ModelShape, layout: PromptLengths, method: Method) -> int | None:
    """Multiply-adds that a method adds in one layer it acts in, negative if it saves some; None: not known."""
    total = layout.total
    if isinstance(method, SegmentMethod):
        added = 2 * shape.width * (_pairs(layout, method.sees_others) - _causal(total))
        return added + (shape.width * _importances(layout) if _measures(method) else 0)
    if isinstance(method, ChannelScaling):
        if method.last == "all":
            return 0  # all rows are computed once, from other queries and keys
        rows = min(method.last, total)
        seen = rows * total - _causal(rows - 1)
        # the keys as a rank-one update, which a norm after the projection would forbid
        return total * shape.key_width + rows * shape.hidden * shape.width + 2 * shape.width * seen
    if isinstance(method, SIW):
        return 2 * shape.width * total  # one row and one column of scores
    if isinstance(method, MsPoE):
        return shape.width * total if method.heads == "by-awareness" else 0  # one row of scores
    if isinstance(method, (NoMethod, SelfExtend, PositionInterpolation)):
        return 0  # each visible pair is scored once, at whatever distance
    return None


def prefill_limit(shape: ModelShape, layouts: Sequence[PromptLengths], method: Method) -> float | None:
    """Ratio of multiply-adds to the plain model's, for the rows of a batch; None: not known for this method."""
    plain = added = 0
    for layout in layouts:
        own = added_in_prefill(shape, layout, method)
        if own is None:
            return None
        plain += plain_prefill(shape, layout)
        added += own * _layers(method, shape)
    return (plain + added) / plain


def plain_reads(shape: ModelShape, layouts: Sequence[PromptLengths]) -> int:
    """Weights and cache entries that the plain model reads for one token of each row."""
    experts = min(shape.experts, len(layouts) * shape.active_experts)
    weights = shape.layers * shape.weights(experts) + shape.hidden * shape.vocabulary
    return weights + shape.layers * 2 * shape.key_width * sum(layout.total for layout in layouts)


def decode_limit(shape: ModelShape, layouts: Sequence[PromptLengths], method: Method) -> float | None:
    """Ratio of bytes read to the plain model's, weights and cache being of one type; None: not known for this method.

    PINE reads the keys of the documents as they are, for the importances, beside the placed ones.
    """
    if added_in_prefill(shape, layouts[0], method) is None:
        return None
    added = shape.key_width * sum(layout.in_documents for layout in layouts) if _measures(method) else 0
    plain = plain_reads(shape, layouts)
    return (plain + added * _layers(method, shape)) / plain


def _layers(method: Method, shape: ModelShape) -> int:
    return len(method.layer_indices(shape.layers)) if isinstance(method, AttentionMethod) else 0
