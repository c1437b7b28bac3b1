"""Character spans, reasons, and patterns for message borders, headers, labels, separators and XML elements."""

from __future__ import annotations

import os
import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias, TypeVar

CharSpan: TypeAlias = tuple[int, int]  # (begin, end), ``end`` exclusive
Item = TypeVar("Item")

MESSAGE_BORDER = re.compile(
    r"<[|｜][^|｜>]*[|｜]>|</?(?:start|end)_of_turn>|\[/?INST\]|</?s>|\[/?TOOL_RESULTS\]|</?tool_response>"
)
ROLE = r"user|system|human|developer|assistant|model|tool|ipython|function|observation|final"
BEFORE_ROLE = r"<[^<>\s]{0,20}(?:start|im_[au]|im_sys|channel)[^<>\s]{0,20}> ?"  # before a role; not ``<|user|>``
OPENING = re.compile(rf"(?:(?:{BEFORE_ROLE}(?:{ROLE})(?=\s*(?:\n|<))|{MESSAGE_BORDER.pattern})\s*)+")
NUMBER = re.compile(r"\d+")
LETTER = re.compile(r"[^\W\d_]")
DOCUMENT_LABEL = (
    r"(?i:(?:retrieved[ _]|search[ _])?(?:document|doc|source|passage|chunk|snippet|excerpt|context|result|text))"
)
LABEL_END = r"(?:[ ]\w+)?(?:[ ]\([^()\n]*\))?\**:\**"  # after a label, as in ``Document (a.txt):``
LABEL_OR_TAG = re.compile(rf"(?:\b(?P<label>{DOCUMENT_LABEL}){LABEL_END}|(?P<tag><[A-Za-z][\w-]*)[^<>]*>)[ \t]*$")
NUMBERED_HEADER = re.compile(
    rf"""
    (?P<markup>\#{{1,6}}[ ]|\*\*)?
    (?:
        (?P<label>{DOCUMENT_LABEL})[ ]?
        (?:\[(?P<square>\d{{1,4}})\]|\((?P<round>\d{{1,4}})\)|\#?(?P<plain>\d{{1,4}})(?=:|[ ]?\(|\*\*|[ \t]*(?:\n|$)))
        (?:[ ]?\((?:[^()\n]|\([^()\n]*\))*\))?                # (Title: ...), which may contain parentheses
      | \[(?P<bare>\d{{1,4}})\](?=\s)
    )
    (?:\*\*)?(?P<colon>:?)(?:\*\*)?(?=\s)[ \t]*\n?
    """,
    re.VERBOSE,
)
ESCAPED_SPACE = re.compile(r"\\[nrt]")  # white space in a printed Python list
TAG = re.compile(r"<(?P<end>/)?(?P<name>[A-Za-z][\w.:-]*?)\d*(?(end)\s*>|(?=[\s>]))")  # excludes attributes
PRINTED = "Document("  # beginning of a document as LangChain prints it; the text is the last field
PRINTED_END = re.compile(r"['\"]?\)")


class Margins(NamedTuple):
    """Whether documents differ in leading or trailing white space."""

    leading: bool = False
    trailing: bool = False


class MarginSpan(tuple[int, int]):
    """A span that also stores ``Margins``. Comparisons ignore the margins."""

    margins: Margins


def add_margins(span: CharSpan, margins: Margins) -> CharSpan:
    if not any(margins):
        return span
    aware = MarginSpan(span)
    aware.margins = margins
    return aware


def margins_of(spans: Iterable[CharSpan]) -> Margins:
    """Combine the margins of all spans. Plain tuples have no margins."""
    margins = [span.margins for span in spans if isinstance(span, MarginSpan)]
    return Margins(any(margin.leading for margin in margins), any(margin.trailing for margin in margins))


def strip_span(text: str, span: CharSpan) -> CharSpan:
    """Return the span without the white space at its ends."""
    part = text[slice(*span)]
    return span[1] - len(part.lstrip()), span[0] + len(part.rstrip())


def regions_outside(text: str, spans: Iterable[CharSpan]) -> list[CharSpan]:
    """Return the regions before, between and after ascending spans."""
    edges = [0, *chain.from_iterable(spans), len(text)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def texts_outside(text: str, spans: Iterable[CharSpan]) -> list[str]:
    """Return the texts before, between and after ascending spans."""
    return [text[begin:end] for begin, end in regions_outside(text, spans)]


def gaps_between(text: str, spans: Iterable[CharSpan]) -> list[str]:
    """Return the texts between neighbouring spans."""
    return texts_outside(text, spans)[1:-1]


def message_around(text: str, begin: int, end: int) -> CharSpan:
    """Return the span of the message that contains ``text[begin:end]``."""
    borders_before = [border.end() for border in MESSAGE_BORDER.finditer(text, 0, begin)]
    border_after = MESSAGE_BORDER.search(text, end)
    return max(borders_before, default=0), border_after.start() if border_after else len(text)


def split_by_message(text: str, items: Sequence[Item], spans: Sequence[CharSpan]) -> list[list[Item]]:
    """Group items by message. Each item is at the span with the same index. Spans are ascending."""
    borders = [index for index, gap in enumerate(gaps_between(text, spans), 1) if MESSAGE_BORDER.search(gap)]
    edges = [0, *borders, len(items)]
    return [list(items[begin:end]) for begin, end in pairwise(edges) if begin < end]


def is_separator(gap: str) -> bool:
    """Whether a text may be a separator: it contains neither letters nor a message border."""
    return not LETTER.search(ESCAPED_SPACE.sub("", gap)) and not MESSAGE_BORDER.search(gap)


def contains_words(gap: str) -> bool:
    """Whether the text contains a letter, digit or symbol other than ASCII punctuation."""
    bare = ESCAPED_SPACE.sub("", gap)
    return any(unicodedata.category(char)[0] in "LMNS" and char not in string.punctuation for char in bare)


def join_reasons(*reasons: str) -> str:
    """Join the reasons that are not empty with semicolons."""
    return "; ".join(filter(None, reasons))


def common_prefix(*texts: str) -> str:
    """Return the longest common prefix of the texts."""
    return os.path.commonprefix(texts)  # noqa: RUF071 - texts are compared by character


def common_suffix(*texts: str) -> str:
    """Return the longest common suffix of the texts."""
    return common_prefix(*(text[::-1] for text in texts))[::-1]


def enclosing_elements(text: str, spans: Sequence[CharSpan]) -> Sequence[CharSpan]:
    """Extend each document to the outermost XML element that contains the document and its metadata.

    Return ``spans`` if the documents are not in XML elements. Return an empty list if tags with the name of the element
    occur inside a document, or if more than two occur between two documents.
    """
    if len(spans) < 2:
        return spans
    every_tag = [list(TAG.finditer(text, *region)) for region in regions_outside(text, spans)]
    name = _element_name(every_tag[1:-1])
    if not name:
        return _printed_list_spans(text, spans)
    before, *between, after = [[tag for tag in tags if tag["name"] == name] for tags in every_tag]
    if not (before and after) or before[-1]["end"] or not after[0]["end"]:
        return spans
    if MESSAGE_BORDER.search(text, before[-1].end(), spans[0][0]):
        return spans
    inside = [tag for span in spans for tag in TAG.finditer(text, *span) if tag["name"] == name]
    if inside or any(len(tags) > 2 for tags in between):
        return []
    begins = [tags[-1].start() for tags in (before, *between)]
    ends = [tags[0].end() for tags in (*between, after)]
    elements = list(zip(begins, ends, strict=True))
    return elements if are_joined(text, elements) else spans


def _element_name(tags_by_gap: Sequence[Sequence[re.Match[str]]]) -> str:
    """Return the name of the outermost element around each document, such as ``doc`` in ``</doc><doc>``, or ""."""
    common = set.intersection(*map(_separating_names, tags_by_gap))
    return next((tag["name"] for tag in reversed(tags_by_gap[0]) if tag["end"] and tag["name"] in common), "")


def _separating_names(tags: Sequence[re.Match[str]]) -> set[str]:
    """Return the names of elements whose first tag is an end tag and whose last tag is a start tag."""
    last = {tag["name"]: tag["end"] for tag in tags}
    first = {tag["name"]: tag["end"] for tag in reversed(tags)}
    return {name for name in first if first[name] and not last[name]}


def _printed_list_spans(text: str, spans: Sequence[CharSpan]) -> Sequence[CharSpan]:
    """Extend the spans to ``Document(...)`` if the prompt contains a printed list of LangChain documents."""
    message_begin, _ = message_around(text, *spans[0])
    regions = [(max(begin, message_begin), end) for begin, end in regions_outside(text, spans)[:-1]]
    ends = [match.end() for _, end in spans if (match := PRINTED_END.match(text, end))]
    if len(ends) < len(spans) or any(text.count(PRINTED, *region) != 1 for region in regions):
        return spans
    printed = list(zip((text.index(PRINTED, *region) for region in regions), ends, strict=True))
    return printed if are_joined(text, printed) else spans


def are_joined(text: str, spans: Sequence[CharSpan]) -> bool:
    """Whether all gaps between the spans contain the same text, and this text contains no words."""
    gaps = set(gaps_between(text, spans))
    return len(gaps) == 1 and not contains_words(gaps.pop())
