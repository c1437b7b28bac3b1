"""The tokens that an intervention acts on: a span by numbers, or a part of the prompt by name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from ragbias.display import shown
from ragbias.errors import MethodError, SpanError
from ragbias.methods.base import SequenceLayout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Where: TypeAlias = tuple[int, int | None] | int | str
PARTS = ("prefix", "documents", "question")
GOLD = "gold"
EXPECTED = (
    "a span (begin, end) of tokens with 0 <= begin < end (None: to the end, generated tokens included), the index of "
    f"a document, or one of {', '.join(map(repr, (*PARTS, GOLD)))}"
)


def checked_where(label: str, where: object) -> Where:
    """A user's span, with a list of two as a tuple.

    Raises:
        MethodError: the span is invalid, see ``EXPECTED``; ``label`` names it.
    """
    if isinstance(where, str) and where in (*PARTS, GOLD):
        return where
    if _whole(where):
        return where  # type: ignore[return-value]  # checked by _whole
    if isinstance(where, (tuple, list)) and len(where) == 2:
        begin, end = where
        if _whole(begin) and (end is None or (_whole(end) and begin < end)):
            return (begin, end)
    raise MethodError(f"{label}={shown(where)}; expected {EXPECTED}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def overlapping(one: Where, other: Where) -> bool:
    """Whether two spans overlap in every prompt."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return (one[1] is None or other[0] < one[1]) and (other[1] is None or one[0] < other[1])
    return one == other


def resolved(where: Where, gold: int | None, order: Sequence[int]) -> Where:
    """The span in a prompt with reordered documents; arguments and errors as in ``index_of``."""
    return index_of(where, gold, order) if where == GOLD or isinstance(where, int) else where


def index_of(document: int | str, gold: int | None, order: Sequence[int]) -> int:
    """The index of a document in a prompt with reordered documents.

    Args:
        document: its index in the retriever's order, or ``"gold"``.
        gold: index of the document with the answer; None if unknown.
        order: the retriever's index of each document of the prompt.

    Raises:
        MethodError: there is no such document, or the one with the answer is unknown.
    """
    if document == GOLD:
        if gold is None:
            raise MethodError("gold: the document with the answer is unknown; pass the index of a document")
        document = gold
    if not isinstance(document, int) or document not in order:
        raise MethodError(f"document {document}: the prompt has {len(order)} documents; expected 0 to {len(order) - 1}")
    return order.index(document)


def span_of(label: str, where: Where, layout: SequenceLayout) -> tuple[int, int | None]:
    """Tokens ``(begin, end)`` of the user's prompt; ``None``: to the end, generated tokens included.

    Raises:
        SpanError: the span is empty or outside the prompt, or there is no such document.
    """
    documents = given_spans(layout)
    if isinstance(where, tuple):
        begin, end = where
        if begin >= layout.length or (end or 0) > layout.length:
            raise SpanError(f"{label}={where} lies outside the prompt of {layout.length} tokens, 0 to {layout.length}")
        return where
    if isinstance(where, int):
        if where >= len(documents):
            raise SpanError(
                f"{label}={where}: the prompt has {len(documents)} documents; expected 0 to {len(documents) - 1}"
            )
        return documents[where]
    first, end = documents[0][0], documents[-1][1]
    spans: dict[str, tuple[int, int | None]] = {
        "prefix": (0, first),
        "documents": (first, end),
        "question": (end, None),
    }
    if where == "prefix" and first == 0:
        raise SpanError(f"{label}='prefix': the prompt has no tokens before its documents")
    return spans[where]


def given_spans(layout: SequenceLayout) -> list[tuple[int, int]]:
    """The documents' spans in the user's prompt."""
    if not layout.spans:
        return []
    length_of = {given: end - begin for given, (begin, end) in zip(layout.order, layout.spans, strict=True)}
    edges = itertools.accumulate((length_of[index] for index in range(len(length_of))), initial=layout.spans[0][0])
    return list(itertools.pairwise(edges))


def tokens_in(label: str, where: Where, layout: SequenceLayout, count: int, device: torch.device) -> Tensor:
    """bool ``[count]``: the tokens of the span among the first ``count`` tokens, in the model's order."""
    import torch

    begin, end = span_of(label, where, layout)
    inside = torch.zeros(count, dtype=torch.bool, device=device)
    inside[begin : count if end is None else end] = True
    if layout.order == tuple(sorted(layout.order)):
        return inside
    documents = given_spans(layout)
    moved = [inside[slice(*documents[index])] for index in layout.order]
    return torch.cat([inside[: documents[0][0]], *moved, inside[documents[-1][1] :]])
