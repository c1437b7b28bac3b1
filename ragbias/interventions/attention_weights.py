"""Interventions on attention's weights: hidden keys, weights multiplied by a factor.

Sources: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536,
which hides keys and changes the attention to the gold document; Qiang et al., arXiv 2512.13109, which change the weight
on the initial token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ragbias.checks import Bounds, check_between, check_whole_between
from ragbias.display import shown
from ragbias.errors import MethodError, SpanError
from ragbias.interventions.base import Intervention
from ragbias.interventions.reweighting import Reweighting
from ragbias.interventions.spans import GOLD, Where, checked_where, index_of, overlapping, tokens_in
from ragbias.methods.base import LayerRange

if TYPE_CHECKING:
    import torch

    from ragbias.methods.call import SequenceLayout

FACTOR = Bounds(0, 1_000)
TOKENS = Bounds(0, 10_000_000)


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
    span_fields = ("queries", "keys")

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
    span_fields = ("queries", "keys")

    def __post_init__(self) -> None:
        _check_apart(self)

    def reweightings(self, layout: SequenceLayout, count: int, device: torch.device) -> list[Reweighting]:
        return [_between(self, layout, count, device, 0.0, renormalise=True)]


def _check_apart(intervention: HideKeys | ScaleAttention) -> None:
    for name in intervention.span_fields:
        where = checked_where(f"{intervention.name}: {name}", getattr(intervention, name))
        object.__setattr__(intervention, name, where)
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
        tokens_in(f"{intervention.name}: {name}", getattr(intervention, name), layout, count, device)
        for name in intervention.span_fields
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
    span_fields = ("documents",)

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

    @property
    def needs_documents(self) -> bool:
        return True

    def resolved(self, gold: int | None, order: Sequence[int]) -> ScaleInitialToken:
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
