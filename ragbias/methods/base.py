"""Base classes of methods, and the input of attention methods: a layer's call for a batch or for one sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ragbias import attention
from ragbias.checks import Bounds, check_parameters, check_whole_between
from ragbias.display import shown
from ragbias.errors import MethodError

if TYPE_CHECKING:
    from torch import Tensor as Tensor
    from typing_extensions import Self
else:  # method declarations do not import torch
    Tensor = Any

LayerRange = tuple[int, int | None]
LAYER_INDEX = Bounds(0, 9_999)  # no model has more layers
QUERIES_AT_ONCE = 64  # limits the memory for scores with all keys


@dataclass(frozen=True)
class SequenceLayout:
    """Padding, length and documents of one sequence in a batch. Spans count from the first prompt token.

    Attributes:
        pad: number of padding columns on the left.
        length: number of tokens of the prompt, without padding.
        spans: ``(begin, end)`` of each document, in the model's reading order. Invariant methods use a canonical order.
        order: the document at ``spans[i]`` has index ``order[i]`` in the user's prompt.
    """

    pad: int
    length: int
    spans: tuple[tuple[int, int], ...]
    order: tuple[int, ...]


@dataclass
class SequenceCall:
    """One sequence in a call of an attention layer, without padding. Positions in the prompt are token indices.

    Attributes:
        index: index of the sequence in the batch.
        layer: index of the layer.
        prefill: whether this forward pass contains the whole prompt.
        pad: number of padding columns that were cut from this sequence's queries in this call.
        query: ``[H, Q, d]``. ``Q`` is the prompt's length in the prefill, and the number of new tokens in decoding.
        key, value: ``[G, K, d]``, all tokens so far.
        memory: the method's state for this sequence and layer, from the prefill to the last token.
        spans, lengths: ``(begin, end)`` and length of each document.
        prefix, documents_end: beginning of the first document and end of the last one.
        new_tail: number of queries after the documents.
        scoring: how the layer computes scores. It includes the positional encoding that the method applies.
    """

    index: int
    layer: int
    prefill: bool
    pad: int
    query: Tensor
    key: Tensor
    value: Tensor
    memory: dict[str, Any]
    spans: tuple[tuple[int, int], ...]
    scoring: attention.Scoring

    @property
    def prefix(self) -> int:
        return self.spans[0][0]

    @property
    def documents_end(self) -> int:
        return self.spans[-1][1]

    @property
    def new_tail(self) -> int:
        return self.query.shape[1] - (self.documents_end if self.prefill and self.spans else 0)

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of each document, int64 ``[n]``."""
        import torch

        return torch.tensor([end - begin for begin, end in self.spans], device=self.key.device)

    def arange(self, *bounds: int) -> Tensor:
        """Return ``range(*bounds)`` as an int64 tensor on the sequence's device."""
        import torch

        return torch.arange(*bounds, device=self.key.device)

    def attend(self, query: Tensor, keys: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """Call ``attention.attend`` with this sequence's values and, by default, its scoring."""
        return attention.attend(query, keys, self.value, **{"scoring": self.scoring, **options})

    def encoded(self, name: str, encode: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Return all keys ``[G, K, d]``, encoded with ``encode(new_keys, index_of_first)`` and cached as ``name``."""
        cached: attention.keys.EncodedKeys = self.memory.setdefault(name, attention.keys.EncodedKeys())
        return cached.update(self.key, encode)


@dataclass
class AttentionCall:
    """One call of an attention layer for a batch.

    Attributes:
        layer: index of the layer, below ``n_layers``.
        query: ``[batch, H, Q, d]``; ``key``, ``value``: ``[batch, G, K, d]`` as in the cache.
        hidden: ``[batch, Q, hidden_size]``, the input of the layer.
        prefill: whether this forward pass contains the whole prompt.
        layouts, scorings: layout and scoring of each sequence.
        memory_of: maps a sequence's index, or None for the batch, to the method's state in this layer.
        project: projects hidden states to unrotated queries ``[batch, H, T, d]`` or keys ``[batch, G, T, d]``.
        rotate: applies the model's rotation to queries or keys ``[batch, heads, T, d]`` of the last ``T`` tokens.
        plain: computes the attention of the plain model, ``[batch, Q, H, d]``, from queries, keys and optional values.
    """

    layer: int
    n_layers: int
    query: Tensor
    key: Tensor
    value: Tensor
    hidden: Tensor
    prefill: bool
    layouts: Sequence[SequenceLayout]
    scorings: Sequence[attention.Scoring]
    memory_of: Callable[[int | None], dict[str, Any]]
    project: Callable[[Literal["query", "key"], Tensor], Tensor]
    rotate: Callable[[Tensor], Tensor]
    plain: Callable[..., Tensor]

    def sequences(self) -> Iterator[SequenceCall]:
        """Iterate over the sequences of the batch."""
        for index, layout in enumerate(self.layouts):
            pad = layout.pad if self.prefill else 0
            yield SequenceCall(
                index=index,
                layer=self.layer,
                prefill=self.prefill,
                pad=pad,
                query=self.query[index, :, pad:],
                key=self.key[index, :, layout.pad :],
                value=self.value[index, :, layout.pad :],
                memory=self.memory_of(index),
                spans=layout.spans,
                scoring=self.scorings[index],
            )


class DocumentScorer(Protocol):
    """Measures, for reordering methods, how much a model attends to each document.

    Documents are numbered in the retriever's order.
    """

    def __call__(self, order: Sequence[int]) -> list[float]:
        """Place the documents in this order. Return the attention of the prompt's last token to each document.

        Attention is summed over a document's tokens, and averaged over layers and heads. A call costs one prefill.
        """

    def contrast(self) -> list[list[float]]:
        """Return the attention to each token of each document, minus the attention to this token if the query is "N/A".

        Attention is averaged over the tokens after the documents, and summed over layers and heads. A call costs one
        prefill.

        Raises:
            MethodError: no query was found after the documents.
        """


@dataclass(frozen=True)
class Ranking:
    """A new order of the documents, which are numbered in the retriever's order.

    ``order[i]`` is the document at position ``i``. ``scores[j]`` is the score of document ``j``, if known.
    """

    order: tuple[int, ...]
    scores: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class _WithReader:
    """The field ``reader`` of all methods. ``Method`` itself is not a dataclass, so its attributes are not fields."""

    reader: str = field(default="", kw_only=True)


class Method(_WithReader):
    """Base class of all methods. Subclasses declare the attributes below.

    Args:
        reader: folder of a reader adapter that ``ragbias adapt`` trained for this method; empty for none.

    Each kind of method has a base class: ``AttentionMethod``, ``ReorderingMethod`` for the order, ``JointMethod`` for
    tokens, and ``VotingMethod`` for answers.

    Attributes:
        name: the name that users type.
        acts_on: what the method changes: ``"attention"``, ``"order"`` (of the documents), ``"tokens"`` (chosen from the
            logits of several prompts), ``"answers"`` (a vote over several answers), or ``"nothing"``.
        needs_documents: whether the method needs the spans of the documents.
        fewest_documents: minimum number of documents if ``needs_documents``. With fewer, the plain model runs.
        invariant: whether the answer is order-invariant.
        reusable_documents: whether a document's keys and values depend only on the prefix and that document.
        selective: whether ``DebiasedLM`` chooses between the method and the plain model for each request.
        needs_rotary: whether the method requires rotary positions.
        default_layers: description of the layers in which the method acts by default.
        cost: description of the cost compared to the plain model.
        source: the paper or other origin.
    """

    name: str
    acts_on: Literal["nothing", "attention", "order", "tokens", "answers"]
    needs_documents: bool = False
    fewest_documents: int = 2
    invariant: bool = False
    reusable_documents: bool = False
    selective: bool = False
    needs_rotary: bool = False
    default_layers: str = "none"
    cost: str
    source: str

    @property
    def is_plain(self) -> bool:
        """Whether the method runs the plain model on the unchanged prompt."""
        return self.acts_on == "nothing"

    @property
    def takes_reader(self) -> bool:
        """Whether the method supports reader adapters."""
        return self.is_plain

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], model_name: str | None) -> Self:
        """Create the method from parsed parameters. ``model_name`` selects the profile if the method has profiles."""
        check_parameters(cls.name, cls, parameters)
        return cls(**parameters)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        """Raise ``MethodError`` if the parameters do not fit a model of this size."""
        self.layer_indices(n_layers)

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        """Return the indices of the layers in which the method acts, in a model of ``n_layers``."""
        return ()


class AttentionMethod(Method):
    """A method that replaces the attention of some layers.

    If the method is invariant, the model reads the documents in a canonical order.

    Attributes:
        positions: ``"none"`` if the method gets queries and cached keys without positions; ``"model"`` if it gets them
            with the model's rotation.
        layers: first and last layer in which the method acts, both included. ``(2, None)`` ends at the last layer of
            the model. ``None`` means all layers.
    """

    acts_on = "attention"
    positions: Literal["none", "model"] = "none"
    default_layers = "all"
    layers: LayerRange | None = None

    @property
    def takes_reader(self) -> bool:
        return self.needs_documents

    def attention(self, call: AttentionCall) -> Tensor:
        """Compute the layer's attention output, ``[batch, queries, heads, d]``."""
        return attend_each(call, lambda seq: self.attend_sequence(seq)[0])

    def attend_sequence(self, seq: SequenceCall) -> tuple[Tensor, Tensor]:
        """Compute the attention of one sequence: output ``[H, Q, d]`` and LSE float32 ``[H, Q]``."""
        raise NotImplementedError

    def query_input(self, hidden: Tensor, layer: int, prefill: bool) -> Tensor:
        """Return the query projection's input, ``[batch, queries, hidden_size]``. By default, this is ``hidden``."""
        return hidden

    def key_input(self, hidden: Tensor, layer: int) -> Tensor:
        """Return the key projection's input, ``[batch, queries, hidden_size]``. By default, this is ``hidden``."""
        return hidden

    def document_order(self, documents: Sequence[Sequence[int]]) -> list[int]:
        """Return the order in which the model reads the documents (token ids). Only invariant methods use it."""
        return canonical_order(documents)

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        return layers_of(self.name, self.layers, n_layers)


def layers_of(name: str, layers: LayerRange | None, n_layers: int) -> range:
    """Return the indices of a range of layers. Raise ``MethodError`` if a model of ``n_layers`` lacks some of them."""
    if layers is None:
        return range(n_layers)
    if not isinstance(layers, tuple) or len(layers) != 2:
        raise MethodError(f"{name}: layers={shown(layers)}; expected a tuple (first, last)")
    first, last = layers
    check_whole_between(f"{name}: first of layers={shown(layers)}:", first, LAYER_INDEX)
    if last is None:
        last = n_layers - 1
    check_whole_between(f"{name}: last of layers={shown(layers)}:", last, LAYER_INDEX)
    if not first <= last < n_layers:
        raise MethodError(
            f"{name}: layers={layers} do not fit a model of {n_layers} layers; "
            f"expected 0 <= first <= last <= {n_layers - 1}, both included"
        )
    return range(first, last + 1)


def in_layers(layers: LayerRange | None, layer: int) -> bool:
    """Whether a range of layers contains a layer."""
    first, last = layers or (0, None)
    return first <= layer and (last is None or layer <= last)


def attend_each(call: AttentionCall, rule: Callable[[SequenceCall], Tensor]) -> Tensor:
    """Apply ``rule`` to each sequence, and join the outputs ``[H, Q, d]`` to ``[batch, Q, H, d]``. Padding is zero."""
    import torch

    output = torch.zeros_like(call.query).transpose(1, 2)
    for sequence in call.sequences():
        output[sequence.index, sequence.pad :] = rule(sequence).transpose(0, 1)
    return output


def canonical_order(documents: Sequence[Sequence[int]]) -> list[int]:
    """Return the indices that sort documents by their token ids. Equal documents keep their order."""
    return sorted(range(len(documents)), key=lambda index: tuple(documents[index]))


class ReorderingMethod(Method):
    """A method that changes the order of the documents and runs the plain model."""

    acts_on = "order"
    needs_documents = True

    def rank(self, documents: Sequence[Sequence[int]], scorer: DocumentScorer) -> Ranking:
        """Return the new order of ``documents``, which are token ids in the retriever's order."""
        raise NotImplementedError


class JointMethod(Method):
    """A method that runs several prompts, each with some of the documents, and combines their logits for each token.

    Attributes:
        needs_likelihoods: whether ``combine_logits`` uses the probability of the text after the documents.
    """

    acts_on = "tokens"
    needs_documents = True
    needs_likelihoods: bool = False

    def prompts(self, documents: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the indices of the documents in each prompt. ``documents`` are the token ids of all documents."""
        raise NotImplementedError

    def combine_logits(self, logits: Tensor, memory: dict[str, Any], previous: int | None) -> Tensor:
        """Compute the scores of the next token, float32 ``[V]``, from the logits ``[prompts, V]`` of all prompts.

        ``previous`` is the id of the previous token; None at the first token. ``memory`` is the state between tokens.
        If ``needs_likelihoods``, ``memory["likelihoods"]`` ``[prompts]`` is the log-probability of the text after the
        documents in each prompt, excluding the text's first token.
        """
        raise NotImplementedError


class VotingMethod(Method):
    """A method that answers with several orders of the documents, and returns the most frequent answer."""

    acts_on = "answers"
    needs_documents = True

    def candidate_orders(self, documents: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the orders to vote on, as indices into ``documents`` (token ids)."""
        raise NotImplementedError
