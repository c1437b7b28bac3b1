"""Documents that no source names, but that have numbered headers: ``Document [1](Title: ...)``, ``[1]``, ``Source 1:``.

Nothing verifies these documents but the prompt's own form, so whatever is doubtful is left as plain text: numbers must
run on from 0 or 1, in one message, at the beginning of lines outside of code blocks.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from ragbias.boundaries.patterns import MESSAGE_BORDER, NUMBERED_HEADER, QUESTION_LINE
from ragbias.boundaries.spans import Span, largest_group, stripped

HEADER_LINE = re.compile(
    rf"""
    (?:^|(?<=\[INST\])|(?<=[|\uff5c]>))[ ]{{0,3}}
    (?:[A-Z][\w ]{{0,30}}:[ \t]+)??                           # Context: [1] ...
    (?P<header>{NUMBERED_HEADER.pattern})
    """,
    re.VERBOSE | re.MULTILINE,
)
BREAKS = [  # what may end the last document, as soon as no other document holds the like
    re.compile(r"\n"),
    re.compile(r"\n[ \t]*\n"),
    re.compile(r"\n[ \t]*[-=*_~]{3,}[ \t]*(?=\n|$)"),
    re.compile(r"\n[ \t]*</[A-Za-z][\w-]*>"),
    QUESTION_LINE,
]
RULE = re.compile(r"[-=*_~]{3,}")
FENCE = re.compile(r"^[ ]{0,3}(?:```|~~~)", re.MULTILINE)
BIBLIOGRAPHY = re.compile(
    r"\W*(?:references|bibliography|literature|works cited|citations|footnotes|notes)\W*", re.IGNORECASE
)


@dataclass(frozen=True)
class _Header:
    style: tuple[str, ...]  # all that the headers of one prompt have in common
    number: int
    begin: int
    end: int


def find(text: str) -> tuple[list[Span], str]:
    """The documents with numbered headers, and, if there are headers but no documents, why.

    Of several messages the one with most documents counts, then the one with most text, then the last one.
    """
    headers = [_header(match) for match in HEADER_LINE.finditer(text)]
    if len(headers) < 2:
        return [], ""
    borders = [border.span() for border in MESSAGE_BORDER.finditer(text)]
    begins, ends = [0, *(end for _, end in borders)], [*(begin for begin, _ in borders), len(text)]
    found: list[list[Span]] = []
    doubt = ""
    for index, group in groupby(headers, key=lambda header: bisect(begins, header.begin) - 1):
        documents, reason = _in_message(text, begins[index], ends[index], list(group))
        found += [documents] if documents else []
        doubt = doubt or reason
    best = list(largest_group(found, lambda span: span))
    return best, "" if best else doubt and f"numbered headers were found, but {doubt}"


def _header(match: re.Match[str]) -> _Header:
    kind = next(kind for kind in ("square", "round", "plain", "bare") if match[kind] is not None)
    style = (kind, (match["label"] or "").lower(), match["markup"] or "", match["colon"])
    return _Header(style, int(match[kind]), match.start("header"), match.end("header"))


def _in_message(text: str, begin: int, end: int, headers: Sequence[_Header]) -> tuple[list[Span], str]:
    """The documents of the message ``text[begin:end]``, or why there are none."""
    fences = [begin + fence.start() for fence in FENCE.finditer(text[begin:end])]
    fenced = [header for header in headers if bisect(fences, header.begin) % 2]
    free = [header for header in headers if not bisect(fences, header.begin) % 2]
    several = Counter(header.style for header in free)
    styles = [style for style, count in several.items() if count > 1]
    styles = [style for style in styles if style[0] != "bare"] or styles
    if len(styles) != 1:
        return [], "they are of several forms" if styles else ""
    sequences = _consecutive([header for header in free if header.style == styles[0]])
    examples = pairwise(sequences)  # a worked example has its own question
    parted = all(QUESTION_LINE.search(text, left[-1].end, right[0].begin) for left, right in examples)
    last = sequences[-1]
    following = last[-1].number + 1, last[-1].style
    continued = following in [(header.number, header.style) for header in fenced]  # inside a code block
    if not parted or continued or any(each[0].number > 1 for each in sequences):
        return [], "their numbers do not run on"
    if len(last) < 2:
        return [], "only one belongs to the last question"
    if last[0].style[0] == "bare" and BIBLIOGRAPHY.fullmatch(text[begin : last[0].begin].rstrip().rpartition("\n")[2]):
        return [], "below the title of a list of references"
    return _documents(text, end, last)


def _documents(text: str, message_end: int, headers: Sequence[_Header]) -> tuple[list[Span], str]:
    """The documents below consecutive headers, or why they are unclear."""
    ends = [header.begin for header in headers[1:]]
    spans = [stripped(text, (header.end, end)) for header, end in zip(headers, ends, strict=False)]
    rules = {_last_line(text, *span) for span in spans}
    if len(rules) == 1 and RULE.fullmatch(rule := rules.pop()):  # it separates them, and the last one has none
        ends = [end - len(rule) for _, end in spans]
    bodies = [text[header.end : end].strip() for header, end in zip(headers, ends, strict=False)]
    length = _end_of_last(text[headers[-1].end : message_end], bodies)
    if length is None:
        return [], "not where the last document ends"
    ends.append(headers[-1].end + length)
    found = [stripped(text, (header.end, end)) for header, end in zip(headers, ends, strict=True)]
    return ([], "no text below one of them") if any(begin >= end for begin, end in found) else (found, "")


def _consecutive(headers: Sequence[_Header]) -> list[list[_Header]]:
    """The headers in groups in which each number follows the one before it."""
    groups: list[list[_Header]] = []
    for header in headers:
        if groups and header.number == groups[-1][-1].number + 1:
            groups[-1].append(header)
        else:
            groups.append([header])
    return groups


def _end_of_last(rest: str, bodies: Sequence[str]) -> int | None:
    """Where the last document ends: at the first break of a kind that no other document holds."""
    kinds = [kind for kind in BREAKS if not any(kind.search(body) for body in bodies)]
    ends = [match.start() for match in (kind.search(rest) for kind in kinds) if match]
    if ends:
        return min(ends)
    return len(rest) if BREAKS[0] in kinds else None  # documents of one line each, the last one ends the message


def _last_line(text: str, begin: int, end: int) -> str:
    return text[max(begin, text.rfind("\n", begin, end) + 1) : end]
