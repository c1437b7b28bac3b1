"""Interventions on attention weights: hide keys, or multiply weights by a factor.

Sources: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536,
which hides keys and changes the attention to the gold document; Qiang et al., arXiv 2512.13109, which changes the
weight on the initial token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ragbias.checks import Bounds, check_between, check_whole_between
from ragbias.display import shown
from ragbias.errors import MethodError, SpanError
from ragbias.methods import SequenceLayout
from ragbias.methods.base import LayerRange
from studies.interventions.base import Intervention
from studies.interventions.reweighting import Reweighting
from studies.interventions.spans import GOLD, Where, check_where, document_index, overlap, span_mask

if TYPE_CHECKING:
    import torch

FACTOR = Bounds(0, 1_000)
TOKENS = Bounds(0, 10_000_000)


class _BetweenSpans(Intervention):
    """Base class of interventions on the weights that one span of queries gives one span of keys."""

    queries: Where
    keys: Where
    factor: float
    renormalise: bool = True

    span_fields = ("queries", "keys")

    def __post_init__(self) -> None:
        for name in self.span_fields:
            object.__setattr__(self, name, check_where(f"{self.name}: {name}", getattr(self, name)))
        if overlap(self.queries, self.keys):
            raise MethodError(self._overlap())

    def reweightings(self, layout: SequenceLayout, count: int, device: torch.device) -> list[Reweighting]:
        queries, keys = (
            span_mask(f"{self.name}: {name}", getattr(self, name), layout, count, device) for name in self.span_fields
        )
        if (queries & keys).any():
            raise SpanError(self._overlap())
        return [Reweighting(queries, keys.float() * (self.factor - 1) + 1, self.renormalise)]

    def _overlap(self) -> str:
        return f"{self.name}: queries={self.queries!r} and keys={self.keys!r} overlap; expected disjoint spans"


@dataclass(frozen=True)
class ScaleAttention(_BetweenSpans):
    """Multiply the weights that a span of queries gives a span of keys by a factor, after the softmax.

    Args:
        queries, keys: spans that do not overlap, see ``spans.EXPECTED``.
        factor: 0 to 1,000; 1 changes nothing.
        renormalise: whether to divide a query's weights by their new sum, which is the same as adding ``log(factor)``
            to the scores.
        layers: first and last layer, both included; ``None``: all.
    """

    queries: Where
    keys: Where
    factor: float
    renormalise: bool = True
    layers: LayerRange | None = None

    name = "scale-attention"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("scale-attention: factor", self.factor, FACTOR)
        if not isinstance(self.renormalise, bool):
            raise MethodError(f"scale-attention: renormalise={shown(self.renormalise)}; expected True or False")


@dataclass(frozen=True)
class HideKeys(_BetweenSpans):
    """Hide a span of keys from a span of queries, as with a mask on the scores.

    Args:
        queries, keys: spans that do not overlap, so that every token sees itself; see ``spans.EXPECTED``.
        layers: first and last layer, both included; ``None``: all.
    """

    queries: Where
    keys: Where
    layers: LayerRange | None = None

    name = "hide"
    factor = 0.0


@dataclass(frozen=True)
class ScaleInitialToken(Intervention):
    """Multiply the weights that the prompt's tokens give its initial token, without renormalising, as in SIW.

    SIW chooses the documents; here they are an argument. D-IT decreases the weights of these documents'
    tokens (``within=0.9``), and I-IT increases the weights of all other tokens (``elsewhere=1.1``). Both together are
    SIW's rule. The initial token itself and generated tokens are unchanged. The paper does not state its factors.

    Args:
        documents: index or indices of documents, or ``"gold"``.
        within: factor for tokens of these documents, 0 to 1,000; 1 changes nothing.
        elsewhere: factor for all other tokens of the prompt.
        token: index of the initial token.
        layers: first and last layer, both included; ``None``: all.
    """

    documents: int | str | tuple[int, ...]
    within: float = 1.0
    elsewhere: float = 1.0
    token: int = 0
    layers: LayerRange | None = None

    name = "scale-initial-token"
    span_fields = ("documents",)
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

    def resolved(self, gold: int | None, order: Sequence[int]) -> ScaleInitialToken:
        given = self.documents if isinstance(self.documents, tuple) else (self.documents,)
        return replace(self, documents=tuple(document_index(each, gold, order) for each in given))

    def reweightings(self, layout: SequenceLayout, count: int, device: torch.device) -> list[Reweighting]:
        import torch

        assert isinstance(self.documents, tuple)
        token = span_mask(f"{self.name}: token", (self.token, self.token + 1), layout, count, device)
        of_prompt = torch.arange(count, device=device) < layout.length
        parts = [span_mask(f"{self.name}: document", document, layout, count, device) for document in self.documents]
        inside = torch.stack(parts).any(0)
        factors = (inside & ~token, self.within), (of_prompt & ~inside & ~token, self.elsewhere)
        return [Reweighting(queries, token.float() * (factor - 1) + 1, False) for queries, factor in factors]
