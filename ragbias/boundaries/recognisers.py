"""Find documents with the user's segmenter, or by numbered headers such as ``Document [1](Title: ...)``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from ragbias.boundaries.text import (
    DOCUMENT_LABEL,
    MESSAGE_BORDER,
    NUMBER,
    NUMBERED_HEADER,
    CharSpan,
    common_suffix,
    regions_outside,
    split_by_message,
    strip_span,
)
from ragbias.errors import SegmenterError

Segmenter: TypeAlias = str | re.Pattern[str] | Callable[[str], Sequence[CharSpan] | Sequence[str]]

HEADER_LINE = re.compile(rf"(?:^[ \t]*|(?<=>))(?P<header>{NUMBERED_HEADER.pattern})", re.VERBOSE | re.MULTILINE)
CONTEXT_TAG = re.compile(rf"<(?P<end>/?)(?P<name>{DOCUMENT_LABEL}s|context)>", re.IGNORECASE)
ELEMENT = "(?:document|doc|passage|chunk)"  # fewer names than ``DOCUMENT_LABEL``: documents may contain <source>
ELEMENT_TAG = re.compile(rf"<{ELEMENT}\d*(?:\s[^<>]*)?>|(</{ELEMENT}\d*>)")  # group 1 is an end tag
KINDS = ("square", "round", "plain", "bare")  # groups of ``NUMBERED_HEADER`` that capture a number
CLOSING = ".!?\u2026\"'\u201d\u2019\u00bb)]}%\u3002\uff01\uff1f"  # characters that end sentences, not separators
NOT_ENCLOSED = (
    "it is unclear where the last document ends, "
    "unless lines <documents> and </documents> enclose the documents and nothing else"
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

    For a separator string, the documents are the texts between two separators in one message. The text before the first
    separator contains the instruction, and the text after the last separator contains the question.
    """
    if isinstance(segmenter, str):
        begins = [match.start() for match in re.finditer(re.escape(segmenter), text)]
        pieces = [(left + len(segmenter), right) for left, right in pairwise(begins)]
        return [span for span in pieces if text[slice(*span)].strip() and not MESSAGE_BORDER.search(text, *span)]
    if isinstance(segmenter, re.Pattern):
        group = 1 if segmenter.groups else 0
        spans = [match.span(group) for match in segmenter.finditer(text) if match.start(group) >= 0]
        return _check_spans(text, spans, f"segmenter={segmenter!r}")
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
    return texts if len(texts) == len(result) else _check_spans(text, result, f"segmenter={name}")


def select_message(text: str, spans: Sequence[CharSpan]) -> list[CharSpan]:
    """Return the spans in the message with the most spans. Break ties by the length of the spans."""
    groups = split_by_message(text, spans, spans)
    return max(groups, key=lambda group: (len(group), sum(e - b for b, e in group), group[0][0]), default=[])


def _check_spans(text: str, spans: Sequence[Any], source: str) -> list[CharSpan]:
    """Convert spans to pairs of ``int``. Raise ``SegmenterError`` unless they are ascending, disjoint and not blank."""
    checked: list[CharSpan] = []
    for span in spans:
        try:  # edges may have any integer type, such as NumPy's
            begin, end = (operator.index(edge) for edge in span if not isinstance(edge, bool))
        except (TypeError, ValueError) as error:
            numbers = isinstance(span, (list, tuple)) and all(isinstance(edge, (int, float)) for edge in span)
            value = f"the span {span!r}" if numbers else f"a {type(span).__name__}"  # errors quote no text
            raise SegmenterError(f"{source} returned {value}; expected only (begin, end), or only texts") from error
        if not 0 <= begin <= end <= len(text):
            raise SegmenterError(f"span ({begin}, {end}) of {source} lies outside the prompt of length {len(text)}")
        if not text[begin:end].strip():
            raise SegmenterError(f"span ({begin}, {end}) of {source} contains no text; leave it out")
        if checked and begin < checked[-1][1]:
            raise SegmenterError(
                f"span ({begin}, {end}) of {source} begins before the end of the previous span, {checked[-1]}; "
                "return spans in the order of the prompt, without overlaps"
            )
        checked.append((begin, end))
    return checked


def document_elements(text: str) -> list[CharSpan]:
    """Return the spans of elements such as ``<doc>...</doc>`` in linear time. An element ends at the next end tag."""
    spans, begin = [], None
    for tag in ELEMENT_TAG.finditer(text):
        if tag[1] is None:
            begin = tag.start() if begin is None else begin
        elif begin is not None:
            spans.append((begin, tag.end()))
            begin = None
    return spans


def find_below_headers(text: str) -> tuple[list[CharSpan], str]:
    """Return the documents below numbered headers in the last message with headers, and a reason if there are none."""
    messages = regions_outside(text, [border.span() for border in MESSAGE_BORDER.finditer(text)])
    for begin, end in reversed(messages):
        found, doubt = _find_in_message(text, begin, end)
        if found or doubt:
            return found, f"numbered headers were found, but {doubt}; pass documents= or segmenter=" if doubt else ""
    return [], ""


def _find_in_message(text: str, begin: int, end: int) -> tuple[list[CharSpan], str]:
    """Return the documents below numbered headers in message ``text[begin:end]``, and a reason if there are none."""
    every = list(HEADER_LINE.finditer(text, begin, end))
    labelled = [header for header in every if header["label"]]
    headers = labelled if len(labelled) > 1 else every  # documents may hold lists of references
    if len(headers) < 2:
        return [], ""
    numbers, forms = zip(*map(_read_header, headers), strict=True)
    if len(set(forms)) > 1:
        return [], "they have several forms"
    first_number, last_number = numbers[0], numbers[-1]
    if first_number > 1 or list(numbers) != list(range(first_number, last_number + 1)):
        return [], "their numbers are not consecutive"
    tags = list(CONTEXT_TAG.finditer(text, begin, end))
    name = next((tag["name"] for tag in reversed(tags) if tag.end() <= headers[0].start()), "")
    element = [tag for tag in tags if tag["name"] == name]
    if [tag["end"] for tag in element] != ["", "/"] or element[1].start() < headers[-1].end():
        return [], NOT_ENCLOSED
    within = NUMBERED_HEADER.finditer(text, headers[-1].end(), element[1].start())
    next_header = (last_number + 1, forms[0])
    # headers without a label are citations
    if any(header["label"] and _read_header(header) == next_header for header in within):
        return [], "one of them is within a line"
    return _find_in_element(text, element[0].end(), element[1].start(), [header.span("header") for header in headers])


def _read_header(header: re.Match[str]) -> tuple[int, tuple[object, ...]]:
    label, numbers = header["label"], header.group(*KINDS)
    form = (label and label.lower(), header["markup"], header["colon"], *map(bool, numbers))
    return int(next(filter(None, numbers))), form


def _find_in_element(text: str, begin: int, end: int, headers: Sequence[CharSpan]) -> tuple[list[CharSpan], str]:
    """Return the documents below the headers in an element, and a reason if they are uncertain."""
    begins = [header_end for _, header_end in headers]
    ends = [*(header_begin for header_begin, _ in headers[1:]), end]
    spans = [strip_span(text, span) for span in zip(begins, ends, strict=True)]
    if any(begin >= end for begin, end in spans):
        return [], "one of them has no text below it"
    lead = text[begin : headers[0][0]]
    *others, last = (NUMBER.sub("0", text[slice(*span)]) for span in spans)
    shared = common_suffix(*others)  # a line or a mark such as a semicolon may be a separator
    is_separated = "\n" in shared or not (shared[-1:].isalnum() or shared[-1:] in CLOSING)
    is_longer = "\n" in last and not any("\n" in other for other in others)  # the last lines may be an instruction
    if lead.strip() or lead != text[spans[-1][1] : end] or is_separated or is_longer:
        return [], NOT_ENCLOSED
    return spans, ""
