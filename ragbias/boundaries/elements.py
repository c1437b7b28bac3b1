"""Documents in elements: ``<document title="...">...</document>``, or ``Document(...)`` in a printed list."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ragbias.boundaries.text import MESSAGE_BORDER, CharSpan, gaps_between, holds_words

TAG = re.compile(r"<(?P<end>/)?(?P<name>[A-Za-z][\w.:-]*?)\d*(?(end)\s*>|(?=[\s>]))")  # without its attributes
PRINTED = "Document("  # how LangChain prints a document; its text comes last


def elements(text: str, spans: Sequence[CharSpan]) -> Sequence[CharSpan]:
    """The spans of the elements that each contain one document with its metadata; ``spans`` if there are none.

    Only the outermost elements count. Returns no spans if their tags also occur elsewhere in or between documents.
    """
    gaps = gaps_between(text, spans)
    if not gaps:
        return spans
    tags = [[(match["name"], match["end"], match.span()) for match in TAG.finditer(gap)] for gap in gaps]
    names = [name for name, end, _ in reversed(tags[0]) if end and all(_encloses(name, each) for each in tags)]
    if not names:
        return _printed(text, spans, gaps)
    between = [[edge for name, _, edge in each if name == names[0]] for each in tags]
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
    return _apart(text, list(zip(begins, ends, strict=True))) or spans


def _encloses(name: str, tags: Sequence[tuple[str, str, CharSpan]]) -> bool:
    """Whether an element of this name ends and another begins."""
    ends = [end for other, end, _ in tags if other == name]
    return len(ends) > 1 and bool(ends[0]) and not ends[-1]


def _printed(text: str, spans: Sequence[CharSpan], gaps: Sequence[str]) -> Sequence[CharSpan]:
    """The elements of a printed list of LangChain documents."""
    border = max((match.end() for match in MESSAGE_BORDER.finditer(text, 0, spans[0][0])), default=0)
    fronts = [text[border : spans[0][0]], *gaps]
    ends = [re.compile(r"['\"]?\)").match(text, end) for _, end in spans]
    if not all(ends) or any(front.count(PRINTED) != 1 for front in fronts):
        return spans
    begins = [begin - len(front) + front.index(PRINTED) for front, (begin, _) in zip(fronts, spans, strict=True)]
    return _apart(text, [(begin, end.end()) for begin, end in zip(begins, ends, strict=True) if end]) or spans


def _apart(text: str, spans: list[CharSpan]) -> list[CharSpan]:
    """The spans if one separator without words joins all, else none."""
    gaps = set(gaps_between(text, spans))
    return spans if len(gaps) == 1 and not holds_words(gaps.pop()) else []
