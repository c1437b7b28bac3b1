"""Compute a method's arithmetic relative to the plain model, a lower limit for the time of any implementation.

The prefill is counted in multiply-adds: projections, MLP, scores and weighted values of visible query-key pairs, and
the head on the last token. Norms, softmax, rotations and padding are not counted. Sliding windows count as full
attention. Decoding is counted in bytes, because it is limited by memory reads: all weights once per batch, and the
cache of each prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

from transformers import PreTrainedConfig

from ragbias.methods import (
    SIW,
    ChannelScaling,
    Method,
    MsPoE,
    NoMethod,
    NoPositions,
    Pine,
    PositionInterpolation,
    Segmented,
    SegmentMethod,
    SelfExtend,
)
from ragbias.prompt import TokenisedPrompt

UNGATED = ("gpt_neox", "mpt")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that determine its arithmetic."""

    hidden: int
    intermediate: int
    heads: int
    key_heads: int  # heads of keys and values
    head_dim: int
    layers: int
    vocabulary: int
    mlp_matrices: int = 3  # 2 if the MLP has no gate
    experts: int = 1  # MLPs per layer
    active_experts: int = 1  # MLPs per token

    @property
    def width(self) -> int:
        """Total width of the query heads, which is the number of multiply-adds per query-key pair for the scores."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.key_heads * self.head_dim

    def weights(self, experts: int) -> int:
        """Return the number of weights of a layer with ``experts`` experts, which is its multiply-adds per token."""
        projections = 2 * self.hidden * self.width + 2 * self.hidden * self.key_width
        return projections + experts * self.mlp_matrices * self.hidden * self.intermediate


@dataclass(frozen=True)
class PromptLengths:
    """Numbers of tokens before the documents, in each document, and after the documents."""

    prefix: int
    documents: tuple[int, ...]
    suffix: int

    @property
    def in_documents(self) -> int:
        return sum(self.documents)

    @property
    def total(self) -> int:
        return self.prefix + self.in_documents + self.suffix


def causal_pairs(tokens: int) -> int:
    """Return the number of pairs of query and key in causal attention over ``tokens`` tokens."""
    return tokens * (tokens + 1) // 2


def visible_pairs(lengths: PromptLengths, sees_others: bool) -> int:
    """Count visible query-key pairs. Documents see the prefix and, if ``sees_others``, all other documents."""
    others = lengths.in_documents if sees_others else 0
    documents = sum(
        length * (lengths.prefix + max(0, others - length)) + causal_pairs(length) for length in lengths.documents
    )
    after = lengths.suffix * (lengths.prefix + lengths.in_documents) + causal_pairs(lengths.suffix)
    return causal_pairs(lengths.prefix) + documents + after


@singledispatch
def added_multiply_adds(method: Method, shape: ModelShape, lengths: PromptLengths) -> int | None:
    """Count the multiply-adds that a method adds to the prefill of a layer in which it acts. None: unknown."""
    return None


@added_multiply_adds.register(NoMethod)
@added_multiply_adds.register(Segmented)
@added_multiply_adds.register(PositionInterpolation)
@added_multiply_adds.register(NoPositions)
@added_multiply_adds.register(SelfExtend)  # each visible pair is scored once
def _zero_added(method: Method, shape: ModelShape, lengths: PromptLengths) -> int:
    return 0


@added_multiply_adds.register
def _added_by_segments(method: SegmentMethod, shape: ModelShape, lengths: PromptLengths) -> int:
    return 2 * shape.width * (visible_pairs(lengths, method.sees_others) - causal_pairs(lengths.total))


@added_multiply_adds.register
def _added_by_pine(method: Pine, shape: ModelShape, lengths: PromptLengths) -> int:
    """Return the multiply-adds that PINE adds per layer, averaged over the layers in which it acts."""
    acting = method.layer_indices(shape.layers)
    together = sum(map(method.together_in, acting)) / len(acting)
    apart = visible_pairs(lengths, sees_others=False)
    others = visible_pairs(lengths, sees_others=True) - apart
    measured = together * others + lengths.suffix * lengths.in_documents if method.follows_query else 0
    more = apart + together * others - causal_pairs(lengths.total)
    return round(shape.width * (2 * more + measured))


@added_multiply_adds.register
def _added_by_ms_poe(method: MsPoE, shape: ModelShape, lengths: PromptLengths) -> int:
    scored = method.heads in ("by-awareness", "entropy")
    return shape.width * lengths.total if scored else 0  # the scores of one query


@added_multiply_adds.register
def _added_by_siw(method: SIW, shape: ModelShape, lengths: PromptLengths) -> int:
    return 2 * shape.width * lengths.total  # the scores of one query and of one key


@added_multiply_adds.register
def _added_by_channel_scaling(method: ChannelScaling, shape: ModelShape, lengths: PromptLengths) -> int:
    if method.last == "all":
        return 0  # all queries are computed once
    queries = min(method.last, lengths.total)
    seen = queries * lengths.total - causal_pairs(queries - 1)
    # the keys are a rank-one update unless a norm follows the projection
    keys = lengths.total * shape.key_width
    return keys + queries * shape.hidden * shape.width + 2 * shape.width * seen


def added_key_reads(method: Method, shape: ModelShape, lengths: PromptLengths) -> int:
    """Count the cached values that only the method reads, per new token and per layer in which it acts."""
    # PINE's importances read the documents' keys without positions
    return shape.key_width * lengths.in_documents if isinstance(method, Pine) and method.follows_query else 0


def shape_of(config: PreTrainedConfig) -> ModelShape:
    """Return the sizes of a model of a supported family."""
    text = config.get_text_config()
    heads, hidden = text.num_attention_heads, text.hidden_size
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 1
    # MPT's module uses four times the hidden size and ignores expansion_ratio in its config
    intermediate = 4 * hidden if text.model_type == "mpt" else text.intermediate_size
    return ModelShape(
        hidden=hidden,
        intermediate=getattr(text, "moe_intermediate_size", None) or intermediate,
        heads=heads,
        key_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or hidden // heads,
        layers=text.num_hidden_layers,
        vocabulary=text.vocab_size,
        mlp_matrices=2 if text.model_type in UNGATED else 3,
        experts=experts,
        active_experts=getattr(text, "num_experts_per_tok", None) or 1,
    )


def lengths_of(prompt: TokenisedPrompt) -> PromptLengths:
    """Return the lengths of a prompt's parts in tokens."""
    return PromptLengths(len(prompt.prefix), tuple(map(len, prompt.documents)), len(prompt.suffix))


def plain_prefill(shape: ModelShape, lengths: PromptLengths) -> int:
    """Count the plain model's multiply-adds up to the first token's logits."""
    layer = lengths.total * shape.weights(shape.active_experts) + 2 * shape.width * causal_pairs(lengths.total)
    return shape.layers * layer + shape.hidden * shape.vocabulary


def prefill_limit(shape: ModelShape, prompts: Sequence[PromptLengths], method: Method) -> float | None:
    """Return a method's multiply-adds divided by the plain model's, for a batch. None: unknown."""
    plain = added = 0
    for lengths in prompts:
        own = added_multiply_adds(method, shape, lengths)
        if own is None:
            return None
        plain += plain_prefill(shape, lengths)
        added += own * len(method.layer_indices(shape.layers))
    return (plain + added) / plain


def plain_reads(shape: ModelShape, prompts: Sequence[PromptLengths]) -> int:
    """Count the weights and cache entries that the plain model reads to decode one token of each prompt."""
    experts = min(shape.experts, len(prompts) * shape.active_experts)
    weights = shape.layers * shape.weights(experts) + shape.hidden * shape.vocabulary
    return weights + shape.layers * 2 * shape.key_width * sum(lengths.total for lengths in prompts)


def decode_limit(shape: ModelShape, prompts: Sequence[PromptLengths], method: Method) -> float | None:
    """Return the bytes that a method reads, divided by those that the plain model reads. None: unknown."""
    if added_multiply_adds(method, shape, prompts[0]) is None:
        return None
    added = sum(added_key_reads(method, shape, lengths) for lengths in prompts)
    plain = plain_reads(shape, prompts)
    return (plain + added * len(method.layer_indices(shape.layers))) / plain
