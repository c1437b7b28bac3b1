"""What every method declares of itself, and the rule it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from ragbias.checks import Bounds, check_parameters, check_whole_between
from ragbias.display import shown
from ragbias.errors import MethodError

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.arithmetic import ModelShape, PromptLengths
    from ragbias.methods.call import AttentionCall, SequenceCall

LayerRange = tuple[int, int | None]
LAYERS = Bounds(0, 9_999)  # of any model
QUERIES_AT_ONCE = 64  # the most whose scores with all keys exist at one time
Self = TypeVar("Self", bound="Method")


class DocumentScorer(Protocol):
    """What a reordering method may ask the model about the documents of a prompt."""

    def __call__(self, order: Sequence[int]) -> list[float]:
        """For an order, the attention that the prompt's last token pays to each document.

        The sum over the document's tokens, averaged over layers and heads, by document as they came. Costs a prefill.
        """

    def contrast(self) -> list[list[float]]:
        """How much more each token of each document is attended to with the query than with "N/A" in its place.

        The attention is that of the tokens after the documents, averaged over them and summed over layers and heads.
        Costs a prefill.

        Raises:
            MethodError: it is not known what the prompt without the query is.
        """


@dataclass(frozen=True)
class Ranking:
    """What a reordering method makes of the documents of a prompt.

    Attributes:
        order: indices of the documents as they came, in the order in which the method puts them.
        scores: what it sorted them by, for each document as they came; None if it measures nothing.
    """

    order: tuple[int, ...]
    scores: tuple[float, ...] | None = None


class Method:
    """Base class of all methods.

    What others need to know of a method it declares here. Who calls what only one kind of method has asks for the kind
    (``AttentionMethod``, ``ReorderingMethod``, ``JointMethod``); nobody asks for the class of a single method.

    Attributes:
        name: the string that users type.
        acts_on: ``"attention"``, ``"order"`` (of the documents), ``"tokens"`` (each chosen from several prompts),
            ``"answers"`` (a vote over several), or ``"nothing"``.
        needs_documents: whether it must know which tokens are documents.
        fewest_documents: with fewer it runs plain, if it needs documents.
        invariant: whether the answer does not depend on the documents' order at all.
        reusable_documents: whether a document's keys and values depend on the prefix and that document alone.
        selective: whether ``DebiasedLM`` chooses between it and the plain model, request by request.
        needs_rotary: whether it makes sense for rotary positions only.
        default_layers: the layers it acts in by default, in words.
        cost: what it costs beside the plain model, in words.
        source: the paper, or where the method comes from.
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
    def asks_several(self) -> bool:
        """Whether several prompts are run for one answer, so that there is no one attention and no one probability."""
        return self.acts_on in ("tokens", "answers")

    @classmethod
    def from_parameters(cls: type[Self], parameters: Mapping[str, Any], model_name: str | None) -> Self:
        """The method with these parameters, as typed on a command line or in a configuration.

        Args:
            parameters: by name; those left out have their defaults.
            model_name: the model it is for, where a method looks up what is known of it.

        Raises:
            MethodError: a parameter is unknown, missing or out of range.
        """
        check_parameters(cls.name, cls, parameters)
        return cls(**parameters)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        """Raise ``MethodError`` if the parameters do not fit a model of this size."""
        self.layer_indices(n_layers)

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        """The layers it acts in, for a model of ``n_layers``."""
        return ()

    def candidate_orders(self, documents: Sequence[Sequence[int]]) -> list[list[int]]:
        """The orders whose answers are voted over, as indices into ``documents`` (token ids); empty: no vote."""
        return []

    def added_multiply_adds(self, shape: ModelShape, lengths: PromptLengths) -> int | None:
        """Multiply-adds it adds to the prefill in a layer it acts in, negative if it saves some; None: unknown."""
        return None

    def added_key_reads(self, shape: ModelShape, lengths: PromptLengths) -> int:
        """Numbers that it reads from the cache for one new token, beside the plain model, in one layer it acts in."""
        return 0


class AttentionMethod(Method):
    """A method that replaces the attention of some layers.

    If it is invariant, the binding runs the documents in a canonical order inside the model.

    Attributes:
        positions: ``"none"`` if queries and keys shall arrive without any position (and be cached so), ``"model"`` if
            the model's own rotation stays.
        layers: first and last layer it acts in, both included, ``None`` as last for the end; ``None``: all layers.
    """

    acts_on = "attention"
    positions: Literal["none", "model"] = "none"
    default_layers = "all"
    layers: LayerRange | None = None

    def attention(self, call: AttentionCall) -> Tensor:
        """The layer's attention output, ``[batch, queries, heads, d]``."""
        return by_sequence(call, lambda sequence: self.attend_sequence(sequence, call.prefill)[0])

    def attend_sequence(self, sequence: SequenceCall, prefill: bool) -> tuple[Tensor, Tensor]:
        """Attention of one sequence: output ``[H, Q, d]`` and LSE float32 ``[H, Q]``."""
        raise NotImplementedError

    def query_input(self, hidden: Tensor, layer: int, prefill: bool) -> Tensor:
        """What the query projection reads instead of ``hidden`` ``[batch, queries, hidden_size]``."""
        return hidden

    def key_input(self, hidden: Tensor, layer: int) -> Tensor:
        """What the key projection reads instead of ``hidden`` ``[batch, queries, hidden_size]``."""
        return hidden

    def document_order(self, documents: Sequence[Sequence[int]]) -> list[int]:
        """For an invariant method, the order in which documents of these token ids run inside the model."""
        return canonical_order(documents)

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        return layers_of(self.name, self.layers, n_layers)


def layers_of(name: str, layers: LayerRange | None, n_layers: int) -> range:
    """The layers of a range, for a model of ``n_layers``; ``MethodError``, which begins with ``name``, if none fits."""
    if layers is None:
        return range(n_layers)
    if not isinstance(layers, tuple) or len(layers) != 2:
        raise MethodError(f"{name}: layers={shown(layers)}; expected a tuple (first, last)")
    first, last = layers
    check_whole_between(f"{name}: first of layers={shown(layers)}:", first, LAYERS)
    if last is not None:
        check_whole_between(f"{name}: last of layers={shown(layers)}:", last, LAYERS)
    last = n_layers - 1 if last is None else last
    if not 0 <= first <= last < n_layers:
        raise MethodError(
            f"{name}: layers={layers} do not fit a model of {n_layers} layers; "
            f"expected 0 <= first <= last <= {n_layers - 1}, both included"
        )
    return range(first, last + 1)


def in_layers(layers: LayerRange | None, layer: int) -> bool:
    """Whether a range of layers holds this one."""
    first, last = layers or (0, None)
    return first <= layer and (last is None or layer <= last)


def by_sequence(call: AttentionCall, rule: Callable[[SequenceCall], Tensor]) -> Tensor:
    """The outputs ``[H, Q, d]`` of a rule for each sequence, as ``[batch, Q, H, d]`` with zeros for padding."""
    import torch

    output = torch.zeros_like(call.query).transpose(1, 2)
    for sequence in call.sequences():
        output[sequence.index, sequence.pad :] = rule(sequence).transpose(0, 1)
    return output


def canonical_order(documents: Sequence[Sequence[int]]) -> list[int]:
    """Indices that sort documents by token ids; equal documents keep their order."""
    return sorted(range(len(documents)), key=lambda index: tuple(documents[index]))


class ReorderingMethod(Method):
    """A method that changes the order of the documents and leaves the model alone."""

    acts_on = "order"
    needs_documents = True

    def rank(self, documents: Sequence[Sequence[int]], scorer: DocumentScorer) -> Ranking:
        """The new order, and the scores that it was made by where the method has some.

        Args:
            documents: token ids of each document, in the retriever's order.
            scorer: tells what the model attends to.
        """
        raise NotImplementedError


class JointMethod(Method):
    """A method that runs prompts with some of the documents each side by side, and chooses every token from all."""

    acts_on = "tokens"
    needs_documents = True

    def prompts(self, documents: Sequence[Sequence[int]]) -> list[list[int]]:
        """Indices of the documents in each prompt; ``documents`` holds their token ids."""
        raise NotImplementedError

    def fused(self, logits: Tensor, memory: dict[str, Any]) -> Tensor:
        """The scores of the next token, float32 ``[V]``.

        Args:
            logits: float32 ``[prompts, V]``.
            memory: what the method keeps from token to token; empty at the first one.
        """
        raise NotImplementedError
