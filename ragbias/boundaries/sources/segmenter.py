"""Documents that the user's own segmenter finds: a separator, a pattern, or a function."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from ragbias.boundaries.patterns import MESSAGE_BORDER
from ragbias.boundaries.spans import Span, largest_group, split_at
from ragbias.errors import SegmenterError

Segmenter: TypeAlias = str | re.Pattern[str] | Callable[[str], Sequence[Span] | Sequence[str]]


def check(segmenter: object) -> None:
    """Refuse what cannot be a segmenter.

    Raises:
        SegmenterError: it is neither a separator, nor a compiled pattern of strings, nor a function.
    """
    pattern = isinstance(segmenter, re.Pattern) and isinstance(segmenter.pattern, str)
    if not (pattern or callable(segmenter) or (isinstance(segmenter, str) and segmenter.strip(" "))):
        raise SegmenterError(
            f"segmenter={segmenter!r}; expected a separator such as '\\n---\\n', a compiled pattern such as "
            "re.compile(r'<doc>(.*?)</doc>', re.S), or a function from the prompt to a list of (begin, end) or of texts"
        )


def find(text: str, segmenter: Segmenter) -> list[Span] | list[str]:
    """The documents that the segmenter finds: their spans, or their texts.

    Raises:
        SegmenterError: the function failed, its result is neither, or a span lies outside the text, is empty, or does
            not come after the one before it.
    """
    if isinstance(segmenter, str):
        return _between(text, segmenter)
    if isinstance(segmenter, re.Pattern):
        group = 1 if segmenter.groups else 0
        spans = [match.span(group) for match in segmenter.finditer(text) if match.start(group) >= 0]
        return _checked(text, spans, f"segmenter={segmenter!r}")
    name = getattr(segmenter, "__name__", type(segmenter).__name__)
    try:
        given = segmenter(text)
        result = None if given is None or isinstance(given, str) else list(given)
    except Exception as error:  # whatever it is, frameworks may swallow it
        raise SegmenterError(f"segmenter={name} failed with {type(error).__name__}") from error
    if result is None:
        raise SegmenterError(
            f"segmenter={name} gave {'None' if given is None else 'one string'}; expected a list of (begin, end) or of "
            "texts, an empty one where there are no documents"
        )
    texts = [each for each in result if isinstance(each, str)]
    if len(texts) == len(result):
        return texts
    return _checked(text, result, f"segmenter={name}")


def in_one_message(text: str, spans: Sequence[Span]) -> list[Span]:
    """The largest group of spans without a border between chat messages; then with most text, then the last."""
    pairs = enumerate(pairwise(spans), 1)
    borders = [index for index, (left, right) in pairs if MESSAGE_BORDER.search(text, left[1], right[0])]
    return list(largest_group(split_at(spans, borders), lambda span: span))


def _between(text: str, separator: str) -> list[Span]:
    """The text between two separators, in one message. Text before the first and after the last one is left:
    there, documents cannot be told apart from the instruction and the question."""
    begins = [match.start() for match in re.finditer(re.escape(separator), text)]
    pieces = [(left + len(separator), right) for left, right in pairwise(begins)]
    return [span for span in pieces if text[slice(*span)].strip() and not MESSAGE_BORDER.search(text, *span)]


def _checked(text: str, spans: Sequence[object], whose: str) -> list[Span]:
    checked: list[Span] = []
    for span in spans:
        begin, end = _edges(span, whose)
        if not 0 <= begin <= end <= len(text):
            raise SegmenterError(f"span ({begin}, {end}) of {whose} lies outside the prompt of length {len(text)}")
        if not text[begin:end].strip():
            raise SegmenterError(f"span ({begin}, {end}) of {whose} holds no text; leave it out")
        if checked and begin < checked[-1][1]:
            raise SegmenterError(
                f"span ({begin}, {end}) of {whose} does not come after the one before it, {checked[-1]}; "
                "give them in the order of the prompt, without overlaps"
            )
        checked.append((begin, end))
    return checked


def _edges(span: object, whose: str) -> Span:
    """Begin and end; whole numbers of any library will do."""
    edges = list(span) if isinstance(span, Iterable) and not isinstance(span, (str, bytes)) else []
    try:
        begin, end = (operator.index(edge) for edge in edges if not isinstance(edge, bool))
    except (TypeError, ValueError) as error:
        numbers = bool(edges) and all(isinstance(edge, (int, float)) for edge in edges)  # any text may be a document's
        what = f"the span {span!r}" if numbers else f"a {type(span).__name__}"
        raise SegmenterError(f"{whose} gave {what}; expected only (begin, end), or only texts") from error
    return begin, end
