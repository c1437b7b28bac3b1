"""The tokens that an intervention acts on: a numeric span, or a named part of the prompt."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from ragbias.checks import is_whole
from ragbias.display import shown
from ragbias.errors import MethodError, SpanError
from ragbias.methods import SequenceLayout

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


def check_where(label: str, where: object) -> Where:
    """Check a user's span, and convert a list of two numbers to a tuple.

    Raises:
        MethodError: the span is invalid, see ``EXPECTED``. ``label`` is its name in the message.
    """
    if isinstance(where, str) and where in (*PARTS, GOLD):
        return where
    if _is_whole(where):
        return where  # type: ignore[return-value]  # checked by _whole
    if isinstance(where, (tuple, list)) and len(where) == 2:
        begin, end = where
        if _is_whole(begin) and (end is None or (_is_whole(end) and begin < end)):
            return (begin, end)
    raise MethodError(f"{label}={shown(where)}; expected {EXPECTED}")


def _is_whole(value: object) -> bool:
    return is_whole(value) and value >= 0


def overlap(one: Where, other: Where) -> bool:
    """Whether two spans overlap in every prompt."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return (one[1] is None or other[0] < one[1]) and (other[1] is None or one[0] < other[1])
    return one == other


def resolve_span(where: Where, gold: int | None, order: Sequence[int]) -> Where:
    """Return the span in a prompt with reordered documents. See ``document_index`` for arguments and errors."""
    return document_index(where, gold, order) if where == GOLD or isinstance(where, int) else where


def document_index(document: int | str, gold: int | None, order: Sequence[int]) -> int:
    """Return the index of a document in a prompt with reordered documents.

    Args:
        document: index in retrieved order, or ``"gold"``.
        gold: index of the gold document; None if unknown.
        order: retrieved index of each document in the prompt.

    Raises:
        MethodError: the document does not exist, or the gold document is unknown.
    """
    if document == GOLD:
        if gold is None:
            raise MethodError("gold: the gold document is unknown; pass the index of a document")
        document = gold
    if not isinstance(document, int) or document not in order:
        raise MethodError(f"document {document}: the prompt has {len(order)} documents; expected 0 to {len(order) - 1}")
    return order.index(document)


def token_span(label: str, where: Where, layout: SequenceLayout) -> tuple[int, int | None]:
    """Return the span as tokens ``(begin, end)`` of the user's prompt. An end of None includes generated tokens.

    Raises:
        SpanError: the span is empty or outside the prompt, or the document does not exist.
    """
    documents = prompt_spans(layout)
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


def prompt_spans(layout: SequenceLayout) -> list[tuple[int, int]]:
    """Return the documents' spans in the user's prompt."""
    if not layout.spans:
        return []
    length_of = {index: end - begin for index, (begin, end) in zip(layout.order, layout.spans, strict=True)}
    edges = itertools.accumulate((length_of[index] for index in range(len(length_of))), initial=layout.spans[0][0])
    return list(itertools.pairwise(edges))


def span_mask(label: str, where: Where, layout: SequenceLayout, count: int, device: torch.device) -> Tensor:
    """Return a mask, bool ``[count]``, of the span's tokens among the first ``count`` tokens in model order."""
    import torch

    begin, end = token_span(label, where, layout)
    inside = torch.zeros(count, dtype=torch.bool, device=device)
    inside[begin : count if end is None else end] = True
    if layout.order == tuple(sorted(layout.order)):
        return inside
    documents = prompt_spans(layout)
    moved = [inside[slice(*documents[index])] for index in layout.order]
    return torch.cat([inside[: documents[0][0]], *moved, inside[documents[-1][1] :]])
