"""The interventions: what each of them changes, and where.

Sources: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536,
which hides keys, shifts positions, changes a channel and the attention to the gold document; Qiang et al., arXiv
2512.13109, which change the weight on the initial token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ragbias.checks import Bounds, check_between, check_choice, check_whole_between, shown
from ragbias.errors import MethodError, SpanError
from ragbias.interventions.spans import GOLD, Where, checked_where, index_of, located, overlapping, tokens_in
from ragbias.methods.base import LayerRange, layers_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ragbias.methods.call import SequenceLayout

FACTOR = Bounds(0, 1_000)
NUMBER = Bounds(-1_000_000, 1_000_000)
TOKENS = Bounds(0, 10_000_000)
OFFSET = Bounds(-10_000_000, 10_000_000)
Self = TypeVar("Self", bound="Intervention")


class Reweighting(NamedTuple):
    """Weights that are multiplied: those of ``queries`` (bool ``[K]``) on each key, by ``factors`` (float32 ``[K]``).

    ``renormalised``: whether the weights of a query shall sum to what they summed to before.
    """

    queries: Tensor
    factors: Tensor
    renormalised: bool


class Intervention:
    """Base class of all interventions; each overrides what it changes.

    Attributes:
        name: the string that users type.
        places: names of the fields that hold a ``Where``.
        layers: first and last layer it acts in, both included, ``None`` as last for the end; ``None``: all.
    """

    name: str
    places: tuple[str, ...] = ()
    layers: LayerRange | None

    @property
    def needs_documents(self) -> bool:
        """Whether it must know which tokens are documents."""
        return any(not isinstance(getattr(self, place), tuple) for place in self.places)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        """Raise ``MethodError`` if the parameters do not fit a model of this size."""
        self.layer_indices(n_layers)
        for place in self.places:
            if getattr(self, place) == GOLD:
                raise MethodError(f"{self.name}: {place}='gold' is not known here; give the index of the document")

    def layer_indices(self, n_layers: int) -> range:
        """The layers it acts in, for a model of ``n_layers``."""
        return layers_of(self.name, self.layers, n_layers)

    def acts_in(self, layer: int) -> bool:
        first, last = self.layers or (0, None)
        return first <= layer and (last is None or layer <= last)

    def located(self: Self, gold: int | None, order: Sequence[int]) -> Self:
        """The same for a prompt whose documents were reordered; arguments and errors as of ``spans.located``."""
        found = {place: located(getattr(self, place), gold, order) for place in self.places}
        return replace(self, **found) if found else self  # type: ignore[type-var]  # all are dataclasses

    def changed(self, hidden: Tensor, of: Literal["query", "key"]) -> Tensor:
        """What queries or keys are computed from instead of ``hidden`` ``[batch, T, hidden_size]``."""
        return hidden

    def offsets(self, layout: SequenceLayout, count: int, device: torch.device) -> Tensor | None:
        """What is added to the positions of the first ``count`` tokens, int64 ``[count]``; None: nothing."""
        return None

    def reweightings(self, layout: SequenceLayout, count: int, device: torch.device) -> list[Reweighting]:
        """The weights on the first ``count`` tokens that it multiplies, in the model's order of tokens.

        As many for each sequence of a batch.
        """
        return []


class _Channel(Intervention):
    """Base class of the changes of one channel."""

    channel: int
    of: Literal["both", "query", "key"]

    def __post_init__(self) -> None:
        check_whole_between(f"{self.name}: channel", self.channel, Bounds(0, 1_000_000))
        check_choice(f"{self.name}: of", self.of, ("both", "query", "key"))

    def validate(self, hidden_size: int, n_layers: int) -> None:
        super().validate(hidden_size, n_layers)
        if self.channel >= hidden_size:
            raise MethodError(
                f"{self.name}: channel={self.channel}, but the hidden state has {hidden_size} channels; "
                f"expected 0 to {hidden_size - 1}"
            )

    def changed(self, hidden: Tensor, of: Literal["query", "key"]) -> Tensor:
        if self.of not in ("both", of):
            return hidden
        result = hidden.clone()
        result[..., self.channel] = self._value(hidden[..., self.channel])
        return result

    def _value(self, channel: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class ScaleChannel(_Channel):
    """A channel of the hidden state that queries and keys are computed from is multiplied by a factor, in all tokens.

    Args:
        channel: index into the hidden state, the output of the layer norm before attention.
        factor: -1,000,000 to 1,000,000; 1 changes nothing.
        layers: first and last layer, both included; ``None``: all.
        of: whether queries, keys or both are computed from it.
    """

    channel: int
    factor: float
    layers: LayerRange | None = None
    of: Literal["both", "query", "key"] = "both"

    name = "scale-channel"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(f"{self.name}: factor", self.factor, NUMBER)

    def _value(self, channel: Tensor) -> Tensor:
        return channel * self.factor


@dataclass(frozen=True)
class AddToChannel(_Channel):
    """A number is added to a channel of the hidden state that queries and keys are computed from, in all tokens.

    Args:
        channel, layers, of: as of ``ScaleChannel``.
        amount: -1,000,000 to 1,000,000; negative to subtract a constant, 0 changes nothing.
    """

    channel: int
    amount: float
    layers: LayerRange | None = None
    of: Literal["both", "query", "key"] = "both"

    name = "add-to-channel"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(f"{self.name}: amount", self.amount, NUMBER)

    def _value(self, channel: Tensor) -> Tensor:
        return channel + self.amount


@dataclass(frozen=True)
class ShiftPositions(Intervention):
    """The position ids of a span are shifted, of its queries and of its keys; who sees whom stays.

    Args:
        span: see ``spans.EXPECTED``.
        by: number of positions, negative to subtract; 0 changes nothing. No position may fall below 0.
        layers: first and last layer, both included; ``None``: all, as position ids given to the model.
    """

    span: Where
    by: int
    layers: LayerRange | None = None

    name = "shift"
    places = ("span",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "span", checked_where("shift: span", self.span))
        check_whole_between("shift: by", self.by, OFFSET)

    def offsets(self, layout: SequenceLayout, count: int, device: torch.device) -> Tensor:
        held = tokens_in("shift: span", self.span, layout, count, device)
        first = int(held.int().argmax())
        if first + self.by < 0:
            raise SpanError(
                f"shift: by={self.by} puts token {first} at position {first + self.by}; expected by >= {-first}"
            )
        return held * self.by


@dataclass(frozen=True)
class ScaleAttention(Intervention):
    """The weights of a span of queries on a span of keys are multiplied by a factor, after the softmax.

    Args:
        queries, keys: see ``spans.EXPECTED``; they must not overlap.
        factor: 0 to 1,000; 1 changes nothing.
        renormalise: whether a query's weights are divided by their new sum, which is the same as adding ``log(factor)``
            to the scores; if not, they sum to more or less than 1.
        layers: first and last layer, both included; ``None``: all.
    """

    queries: Where
    keys: Where
    factor: float
    renormalise: bool = True
    layers: LayerRange | None = None

    name = "scale-attention"
    places = ("queries", "keys")

    def __post_init__(self) -> None:
        _check_apart(self)
        check_between("scale-attention: factor", self.factor, FACTOR)
        if not isinstance(self.renormalise, bool):
            raise MethodError(f"scale-attention: renormalise={shown(self.renormalise)}; expected True or False")

    def reweightings(self, layout: SequenceLayout, count: int, device: torch.device) -> list[Reweighting]:
        return [_between(self, layout, count, device, self.factor, self.renormalise)]


@dataclass(frozen=True)
class HideKeys(Intervention):
    """A span of keys is hidden from a span of queries, as by a mask that is added to the scores.

    Args:
        queries, keys: see ``spans.EXPECTED``; they must not overlap, so that every token sees itself.
        layers: first and last layer, both included; ``None``: all.
    """

    queries: Where
    keys: Where
    layers: LayerRange | None = None

    name = "hide"
    places = ("queries", "keys")

    def __post_init__(self) -> None:
        _check_apart(self)

    def reweightings(self, layout: SequenceLayout, count: int, device: torch.device) -> list[Reweighting]:
        return [_between(self, layout, count, device, 0.0, renormalise=True)]


def _check_apart(intervention: HideKeys | ScaleAttention) -> None:
    for place in intervention.places:
        where = checked_where(f"{intervention.name}: {place}", getattr(intervention, place))
        object.__setattr__(intervention, place, where)
    if overlapping(intervention.queries, intervention.keys):
        raise _overlap(intervention, MethodError)


def _overlap(intervention: HideKeys | ScaleAttention, error: type[MethodError] | type[SpanError]) -> Exception:
    queries, keys = intervention.queries, intervention.keys
    return error(f"{intervention.name}: queries={queries!r} and keys={keys!r} overlap; expected spans apart")


def _between(
    intervention: HideKeys | ScaleAttention,
    layout: SequenceLayout,
    count: int,
    device: torch.device,
    factor: float,
    renormalise: bool,
) -> Reweighting:
    queries, keys = (
        tokens_in(f"{intervention.name}: {place}", getattr(intervention, place), layout, count, device)
        for place in intervention.places
    )
    if (queries & keys).any():
        raise _overlap(intervention, SpanError)
    return Reweighting(queries, keys.float() * (factor - 1) + 1, renormalise)


@dataclass(frozen=True)
class ScaleInitialToken(Intervention):
    """The weight of the prompt's tokens on its initial token is multiplied, without renormalising, as SIW does.

    For given documents instead of those that SIW finds: D-IT decreases it there (``within=0.9``), I-IT increases it
    everywhere else (``elsewhere=1.1``), and both together are SIW's rule. The token itself is exempt, and so are
    generated tokens. The values are ours; the paper gives none.

    Args:
        documents: indices of the documents, or one, or ``"gold"``.
        within: factor for tokens of these documents, 0 to 1,000; 1 changes nothing.
        elsewhere: factor for all other tokens of the prompt.
        token: which token counts as the initial one.
        layers: first and last layer, both included; ``None``: all.
    """

    documents: int | str | tuple[int, ...]
    within: float = 1.0
    elsewhere: float = 1.0
    token: int = 0
    layers: LayerRange | None = None

    name = "scale-initial-token"
    needs_documents = True

    def __post_init__(self) -> None:
        given: Any = self.documents
        if given != GOLD:
            given = tuple(given) if isinstance(given, (tuple, list)) else (given,)
            for document in given:
                check_whole_between(f"{self.name}: document", document, TOKENS)
            if not given or len(set(given)) < len(given):
                raise MethodError(
                    f"{self.name}: documents={shown(self.documents)}; "
                    "expected different indices of documents, or 'gold'"
                )
        object.__setattr__(self, "documents", given)
        check_between(f"{self.name}: within", self.within, FACTOR)
        check_between(f"{self.name}: elsewhere", self.elsewhere, FACTOR)
        check_whole_between(f"{self.name}: token", self.token, TOKENS)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        super().validate(hidden_size, n_layers)
        if self.documents == GOLD:
            raise MethodError(f"{self.name}: documents='gold' is not known here; give the index of the document")

    def located(self, gold: int | None, order: Sequence[int]) -> ScaleInitialToken:
        given = self.documents if isinstance(self.documents, tuple) else (self.documents,)
        return replace(self, documents=tuple(index_of(each, gold, order) for each in given))

    def reweightings(self, layout: SequenceLayout, count: int, device: torch.device) -> list[Reweighting]:
        import torch

        assert isinstance(self.documents, tuple)
        token = tokens_in(f"{self.name}: token", (self.token, self.token + 1), layout, count, device)
        of_prompt = torch.arange(count, device=device) < layout.length
        parts = [tokens_in(f"{self.name}: document", document, layout, count, device) for document in self.documents]
        inside = torch.stack(parts).any(0)
        factors = (inside & ~token, self.within), (of_prompt & ~inside & ~token, self.elsewhere)
        return [Reweighting(queries, token.float() * (factor - 1) + 1, False) for queries, factor in factors]


KINDS: dict[str, type[Intervention]] = {
    kind.name: kind
    for kind in (HideKeys, ShiftPositions, ScaleChannel, AddToChannel, ScaleAttention, ScaleInitialToken)
}
