"""Multiply-adds of methods, from the sizes of a model, the lengths of a prompt, and pairs of tokens."""

from __future__ import annotations

from dataclasses import dataclass


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
        """Width of all query heads. A score or a weighted value needs this many multiply-adds over all heads."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.key_heads * self.head_dim

    def weights(self, experts: int) -> int:
        """Return the weights of a layer with this many experts, i.e. its multiply-adds for one token."""
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
    """Count visible pairs. A document sees the prefix, itself causally and, with ``sees_others``, other documents."""
    others = lengths.in_documents if sees_others else 0
    documents = sum(
        length * (lengths.prefix + max(0, others - length)) + causal_pairs(length) for length in lengths.documents
    )
    after = lengths.suffix * (lengths.prefix + lengths.in_documents) + causal_pairs(lengths.suffix)
    return causal_pairs(lengths.prefix) + documents + after
