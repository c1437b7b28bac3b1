"""The cost of a method from its arithmetic alone, relative to the plain model: a limit for any implementation.

The prefill is counted in multiply-adds: projections, MLP, scores and weighted values of visible query-key pairs, and
the head on the last token. Norms, softmax, rotations and padding are not counted. Sliding windows count as full
attention. Decoding is counted in bytes, because it is limited by memory reads: all weights once per batch, and the
cache of each prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedConfig

from ragbias.methods import Method
from ragbias.methods.arithmetic import ModelShape, PromptLengths, causal_pairs
from ragbias.prompt import TokenisedPrompt

UNGATED = ("gpt_neox", "mpt")


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
    """Ratio of a method's multiply-adds to the plain model's for a batch. None if it is unknown for the method."""
    plain = added = 0
    for lengths in prompts:
        own = method.added_multiply_adds(shape, lengths)
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
    """Ratio of a method's bytes read to the plain model's, with one dtype for weights and cache. None: unknown."""
    if method.added_multiply_adds(shape, prompts[0]) is None:
        return None
    added = sum(method.added_key_reads(shape, lengths) for lengths in prompts)
    plain = plain_reads(shape, prompts)
    return (plain + added * len(method.layer_indices(shape.layers))) / plain
