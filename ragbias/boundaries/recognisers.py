"""Recognise documents by the user's segmenter, or by numbered headers such as ``Document [1](Title: ...)``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from ragbias.boundaries.text import (
    MESSAGE_BORDER,
    NUMBERED_HEADER,
    QUESTION_LINE,
    CharSpan,
    largest_group,
    split_at,
    stripped,
)
from ragbias.errors import SegmenterError

Segmenter: TypeAlias = str | re.Pattern[str] | Callable[[str], Sequence[CharSpan] | Sequence[str]]

HEADER_LINE = re.compile(
    rf"""
    (?:^|(?<=\[INST\])|(?<=[|\uff5c]>))[ ]{{0,3}}
    (?:[A-Z][\w ]{{0,30}}:[ \t]+)??                           # Context: [1] ...
    (?P<header>{NUMBERED_HEADER.pattern})
    """,
    re.VERBOSE | re.MULTILINE,
)
BREAKS = [  # possible ends of the last document, unless another document contains them
    re.compile(r"\n"),
    re.compile(r"\n[ \t]*\n"),
    re.compile(r"\n[ \t]*[-=*_~]{3,}[ \t]*(?=\n|$)"),
    re.compile(r"\n[ \t]*</[A-Za-z][\w-]*>"),
    QUESTION_LINE,
]
KINDS = ("square", "round", "plain", "bare")  # groups of ``NUMBERED_HEADER`` that capture a number
RULE = re.compile(r"[-=*_~]{3,}")
FENCE = re.compile(r"^[ ]{0,3}(?:```|~~~)", re.MULTILINE)
BIBLIOGRAPHY = re.compile(
    r"\W*(?:references|bibliography|literature|works cited|citations|footnotes|notes)\W*", re.IGNORECASE
)


def check_segmenter(segmenter: object) -> None:
    """Raise ``SegmenterError`` unless the segmenter is a separator, a compiled ``str`` pattern, or a function."""
    pattern = isinstance(segmenter, re.Pattern) and isinstance(segmenter.pattern, str)
    if not (pattern or callable(segmenter) or (isinstance(segmenter, str) and segmenter.strip(" "))):
        raise SegmenterError(
            f"segmenter={segmenter!r}; expected a separator such as '\\n---\\n', a compiled pattern such as "
            "re.compile(r'<doc>(.*?)</doc>', re.S), or a function from the prompt to a list of (begin, end) or of texts"
        )


def segment(text: str, segmenter: Segmenter) -> list[CharSpan] | list[str]:
    """Return the documents that the segmenter finds. Raise ``SegmenterError`` if it fails or returns invalid spans.

    A separator string yields the texts between two separators in one message. Text before the first separator and
    after the last one is not a document, because it contains the instruction and the question.
    """
    if isinstance(segmenter, str):
        begins = [match.start() for match in re.finditer(re.escape(segmenter), text)]
        pieces = [(left + len(segmenter), right) for left, right in pairwise(begins)]
        return [span for span in pieces if text[slice(*span)].strip() and not MESSAGE_BORDER.search(text, *span)]
    if isinstance(segmenter, re.Pattern):
        group = 1 if segmenter.groups else 0
        spans = [match.span(group) for match in segmenter.finditer(text) if match.start(group) >= 0]
        return _checked(text, spans, f"segmenter={segmenter!r}")
    name = getattr(segmenter, "__name__", type(segmenter).__name__)
    try:
        given = segmenter(text)
        result = None if given is None or isinstance(given, str) else list(given)
    except Exception as error:  # user code may raise any error, and frameworks may swallow it
        raise SegmenterError(f"segmenter={name} failed with {type(error).__name__}") from error
    if result is None:
        raise SegmenterError(
            f"segmenter={name} returned {'None' if given is None else 'one string'}; expected a list of (begin, end) "
            "or of texts, which is empty if there are no documents"
        )
    texts = [document for document in result if isinstance(document, str)]
    return texts if len(texts) == len(result) else _checked(text, result, f"segmenter={name}")


def in_one_message(text: str, spans: Sequence[CharSpan]) -> list[CharSpan]:
    """Return the largest group of spans in one message."""
    pairs = enumerate(pairwise(spans), 1)
    borders = [index for index, (left, right) in pairs if MESSAGE_BORDER.search(text, left[1], right[0])]
    return largest_group(split_at(spans, borders))


def _checked(text: str, spans: Sequence[object], whose: str) -> list[CharSpan]:
    checked: list[CharSpan] = []
    for span in spans:
        begin, end = _edges(span, whose)
        if not 0 <= begin <= end <= len(text):
            raise SegmenterError(f"span ({begin}, {end}) of {whose} lies outside the prompt of length {len(text)}")
        if not text[begin:end].strip():
            raise SegmenterError(f"span ({begin}, {end}) of {whose} contains no text; leave it out")
        if checked and begin < checked[-1][1]:
            raise SegmenterError(
                f"span ({begin}, {end}) of {whose} does not follow the span before it, {checked[-1]}; "
                "return spans in the order of the prompt, without overlaps"
            )
        checked.append((begin, end))
    return checked


def _edges(span: object, whose: str) -> CharSpan:
    """Convert a span to two ``int``. Other integer types, such as NumPy's, are accepted."""
    edges = list(span) if isinstance(span, Iterable) and not isinstance(span, (str, bytes)) else []
    try:
        begin, end = (operator.index(edge) for edge in edges if not isinstance(edge, bool))
    except (TypeError, ValueError) as error:
        numbers = bool(edges) and all(isinstance(edge, (int, float)) for edge in edges)  # errors quote no text
        value = f"the span {span!r}" if numbers else f"a {type(span).__name__}"
        raise SegmenterError(f"{whose} returned {value}; expected only (begin, end), or only texts") from error
    return begin, end


def below_headers(text: str) -> tuple[list[CharSpan], str]:
    """Return the documents below numbered headers. If there are headers but no documents, return the reason."""
    borders = MESSAGE_BORDER.finditer(text)
    edges = [0, *(edge for border in borders for edge in border.span()), len(text)]
    found = [_in_message(text, begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    best = largest_group(documents for documents, _ in found)
    doubt = next((reason for _, reason in found if reason), "")
    remedy = f"numbered headers were found, but {doubt}; pass documents= or segmenter="
    return best, remedy if doubt and not best else ""


def _in_message(text: str, begin: int, end: int) -> tuple[list[CharSpan], str]:
    """Return the documents of the message ``text[begin:end]``. If there are none, return the reason."""
    every = list(HEADER_LINE.finditer(text, begin, end))
    labelled = [header for header in every if header["label"]]
    headers = labelled if len(labelled) > 1 else every  # documents may hold lists of references
    if len(headers) < 2:
        return [], ""
    forms = {(h["label"] and h["label"].lower(), h["markup"], h["colon"], *map(bool, h.group(*KINDS))) for h in headers}
    if len(forms) > 1:
        return [], "they have several forms"
    if FENCE.search(text[begin:end]):
        return [], "the message contains a code block"
    numbers = [int(next(filter(None, header.group(*KINDS)))) for header in headers]
    if numbers[0] > 1 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return [], "their numbers are not consecutive"
    if not labelled and BIBLIOGRAPHY.fullmatch(text[begin : headers[0].start("header")].rstrip().rpartition("\n")[2]):
        return [], "they follow the title of a list of references"
    return _documents(text, end, [header.span("header") for header in headers])


def _documents(text: str, message_end: int, headers: Sequence[CharSpan]) -> tuple[list[CharSpan], str]:
    """Return the documents below consecutive headers. If their ends are ambiguous, return the reason."""
    begins, ends = [end for _, end in headers], [begin for begin, _ in headers[1:]]
    spans = [stripped(text, span) for span in zip(begins, ends, strict=False)]
    rules = {text[max(begin, text.rfind("\n", begin, end) + 1) : end] for begin, end in spans}
    if len(rules) == 1 and RULE.fullmatch(rule := rules.pop()):  # a separator is not part of the documents
        ends = [end - len(rule) for _, end in spans]
    bodies = [text[begin:end].strip() for begin, end in zip(begins, ends, strict=False)]
    length = _end_of_last(text[begins[-1] : message_end], bodies)
    if length is None:
        return [], "the end of the last document is unclear"
    found = [stripped(text, span) for span in zip(begins, [*ends, begins[-1] + length], strict=True)]
    return ([], "one of them has no text below it") if any(begin >= end for begin, end in found) else (found, "")


def _end_of_last(rest: str, bodies: Sequence[str]) -> int | None:
    """Return the end of the last document: the first break that no other document contains. None if ambiguous."""
    kinds = [kind for kind in BREAKS if not any(kind.search(body) for body in bodies)]
    ends = [match.start() for match in (kind.search(rest) for kind in kinds) if match]
    if ends:
        return min(ends)
    return len(rest) if BREAKS[0] in kinds else None  # documents of one line each may end the message
