"""Character spans, and patterns for message borders, headers, labels, separators and XML elements."""

from __future__ import annotations

import os
import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
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


class Margins(NamedTuple):
    """Whether documents differ in ``left`` (leading) or ``right`` (trailing) white space."""

    left: bool = False
    right: bool = False


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
    return Margins(any(margin.left for margin in margins), any(margin.right for margin in margins))


def strip_span(text: str, span: CharSpan) -> CharSpan:
    """Return the span without the white space at its ends."""
    part = text[slice(*span)]
    return span[1] - len(part.lstrip()), span[0] + len(part.rstrip())


def gaps_between(text: str, spans: Sequence[CharSpan]) -> list[str]:
    """Return the texts between neighbouring spans."""
    return [text[left[1] : right[0]] for left, right in pairwise(spans)]


def split_at(items: Sequence[Item], borders: Iterable[int]) -> list[list[Item]]:
    """Split the items into non-empty groups. Each border index begins a new group."""
    edges = [0, *sorted(borders), len(items)]
    return [list(items[begin:end]) for begin, end in pairwise(edges) if begin < end]


def is_separator(gap: str) -> bool:
    """Whether a text may be a separator: it contains neither letters nor a message border."""
    return not LETTER.search(ESCAPED_SPACE.sub("", gap)) and not MESSAGE_BORDER.search(gap)


def contains_words(gap: str) -> bool:
    """Whether the text contains a letter, digit or symbol other than ASCII punctuation."""
    bare = ESCAPED_SPACE.sub("", gap)
    return any(unicodedata.category(char)[0] in "LMNS" and char not in string.punctuation for char in bare)


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
    gaps = gaps_between(text, spans)
    if not gaps:
        return spans
    tags = [[(match["name"], match["end"], match.span()) for match in TAG.finditer(gap)] for gap in gaps]
    common = set.intersection(*map(_enclosing_names, tags))
    names = [name for name, end, _ in reversed(tags[0]) if end and name in common]
    if not names:
        return _printed_list_spans(text, spans, gaps)
    between = [[edge for name, _, edge in in_gap if name == names[0]] for in_gap in tags]
    first = [match for match in TAG.finditer(text, 0, spans[0][0]) if match["name"] == names[0]][-1:]
    last = [match for match in TAG.finditer(text, spans[-1][1]) if match["name"] == names[0]][:1]
    enclosed = first and last and last[0]["end"] and not first[0]["end"]
    if not enclosed or MESSAGE_BORDER.search(text, first[0].end(), spans[0][0]):
        return spans
    inside = any(match["name"] == names[0] for span in spans for match in TAG.finditer(text, *span))
    if inside or any(len(edges) > 2 for edges in between):
        return []
    begins = [first[0].start(), *(end + edges[1][0] for (_, end), edges in zip(spans, between, strict=False))]
    ends = [*(end + edges[0][1] for (_, end), edges in zip(spans, between, strict=False)), last[0].end()]
    return _spans_if_joined(text, list(zip(begins, ends, strict=True))) or spans


def _enclosing_names(tags: Sequence[tuple[str, str, CharSpan]]) -> set[str]:
    """Return the names of elements that may surround each document, such as ``doc`` in ``</doc><doc>``.

    ``tags`` are the tags between two documents.
    """
    last = {name: end for name, end, _ in tags}
    first = {name: end for name, end, _ in reversed(tags)}
    return {name for name in first if first[name] and not last[name]}


def _printed_list_spans(text: str, spans: Sequence[CharSpan], gaps: Sequence[str]) -> Sequence[CharSpan]:
    """Extend the spans to ``Document(...)`` if the prompt contains a printed list of LangChain documents."""
    border = max((match.end() for match in MESSAGE_BORDER.finditer(text, 0, spans[0][0])), default=0)
    fronts = [text[border : spans[0][0]], *gaps]
    ends = [re.compile(r"['\"]?\)").match(text, end) for _, end in spans]
    if not all(ends) or any(front.count(PRINTED) != 1 for front in fronts):
        return spans
    begins = [begin - len(front) + front.index(PRINTED) for front, (begin, _) in zip(fronts, spans, strict=True)]
    return _spans_if_joined(text, [(begin, end.end()) for begin, end in zip(begins, ends, strict=True) if end]) or spans


def _spans_if_joined(text: str, spans: list[CharSpan]) -> list[CharSpan]:
    """Return the spans if all gaps between them are the same text, without words, otherwise an empty list."""
    gaps = set(gaps_between(text, spans))
    return spans if len(gaps) == 1 and not contains_words(gaps.pop()) else []
