"""Where in a prompt an intervention acts: tokens by number, or a part of the prompt by name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from ragbias.display import shown
from ragbias.errors import MethodError, SpanError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ragbias.methods.call import SequenceLayout

Where: TypeAlias = tuple[int, int | None] | int | str
PARTS = ("prefix", "documents", "question")
GOLD = "gold"
EXPECTED = (
    "a span (begin, end) of tokens with 0 <= begin < end (None: to the end, generated tokens included), the index of "
    f"a document, or one of {', '.join(map(repr, (*PARTS, GOLD)))}"
)


def checked_where(label: str, where: object) -> Where:
    """A span as a user may give it, a list of two as a tuple.

    Raises:
        MethodError: it is none of what ``EXPECTED`` says; ``label`` names it.
    """
    if isinstance(where, str) and where in (*PARTS, GOLD):
        return where
    if _whole(where):
        return where  # type: ignore[return-value]  # told by _whole
    if isinstance(where, (tuple, list)) and len(where) == 2:
        begin, end = where
        if _whole(begin) and (end is None or (_whole(end) and begin < end)):
            return (begin, end)
    raise MethodError(f"{label}={shown(where)}; expected {EXPECTED}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def overlapping(one: Where, other: Where) -> bool:
    """Whether two spans overlap, as far as can be told before there is a prompt."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return (one[1] is None or other[0] < one[1]) and (other[1] is None or one[0] < other[1])
    return one == other


def resolved(where: Where, gold: int | None, order: Sequence[int]) -> Where:
    """The span in a prompt whose documents were reordered; arguments and errors as of ``index_of``."""
    return index_of(where, gold, order) if where == GOLD or isinstance(where, int) else where


def index_of(document: int | str, gold: int | None, order: Sequence[int]) -> int:
    """Which document of a prompt it is, by its index as the documents came.

    Args:
        document: that index, or ``"gold"``.
        gold: index of the document with the answer; None if it is not known.
        order: of each document of the prompt, its index as they came.

    Raises:
        MethodError: there is no such document, or the one with the answer is not known.
    """
    if document == GOLD:
        if gold is None:
            raise MethodError("gold: the document with the answer is not known; give the index of a document")
        document = gold
    if not isinstance(document, int) or document not in order:
        raise MethodError(f"document {document}: the prompt has {len(order)} documents; expected 0 to {len(order) - 1}")
    return order.index(document)


def span_of(label: str, where: Where, layout: SequenceLayout) -> tuple[int, int | None]:
    """Tokens ``(begin, end)`` of the prompt as it was given; ``None``: to the end, generated tokens included.

    Raises:
        SpanError: the span is empty here, lies outside the prompt, or there is no such document.
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
        raise SpanError(f"{label}='prefix': no token stands before the documents of this prompt")
    return spans[where]


def given_spans(layout: SequenceLayout) -> list[tuple[int, int]]:
    """The documents' spans in the prompt as it was given, in which the model need not run them."""
    if not layout.spans:
        return []
    length_of = {given: end - begin for given, (begin, end) in zip(layout.order, layout.spans, strict=True)}
    edges = itertools.accumulate((length_of[index] for index in range(len(length_of))), initial=layout.spans[0][0])
    return list(itertools.pairwise(edges))


def tokens_in(label: str, where: Where, layout: SequenceLayout, count: int, device: torch.device) -> Tensor:
    """bool ``[count]``, which of the sequence's first ``count`` tokens, in the model's order, the span holds."""
    import torch

    begin, end = span_of(label, where, layout)
    held = torch.zeros(count, dtype=torch.bool, device=device)
    held[begin : count if end is None else end] = True
    if layout.order == tuple(sorted(layout.order)):
        return held
    documents = given_spans(layout)
    moved = [held[slice(*documents[index])] for index in layout.order]
    return torch.cat([held[: documents[0][0]], *moved, held[documents[-1][1] :]])
