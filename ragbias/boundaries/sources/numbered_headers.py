"""Documents that nothing names, but that carry numbered headers: ``Document [1](Title: ...)``, ``[1]``, ``Source 1:``.

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

from ragbias.boundaries.matching.occurrences import MESSAGE_BORDER
from ragbias.boundaries.spans import fullest

LABEL = r"(?i:(?:retrieved[ ]|search[ ])?(?:document|doc|source|passage|chunk|snippet|excerpt|context|result|text))"
HEADER = re.compile(
    rf"""
    (?P<mark>\#{{1,6}}[ ]|\*\*)?
    (?:
        (?P<label>{LABEL})[ ]?
        (?:\[(?P<square>\d{{1,4}})\]|\((?P<round>\d{{1,4}})\)|\#?(?P<plain>\d{{1,4}})(?=:|[ ]?\(|\*\*|[ \t]*(?:\n|$)))
        (?:[ ]?\((?:[^()\n]|\([^()\n]*\))*\))?                # (Title: ...), with parentheses of its own
      | \[(?P<bare>\d{{1,4}})\](?=\s)
    )
    (?:\*\*)?(?P<colon>:?)(?:\*\*)?(?=\s)[ \t]*\n?
    """,
    re.VERBOSE,
)
HEADER_LINE = re.compile(
    rf"""
    (?:^|(?<=\[INST\])|(?<=[|\uff5c]>))[ ]{{0,3}}
    (?:[A-Z][\w ]{{0,30}}:[ \t]+)??                           # Context: [1] ...
    (?P<header>{HEADER.pattern})
    """,
    re.VERBOSE | re.MULTILINE,
)
QUESTION = re.compile(
    r"\n[ \t]*\**(?:question|query|user|human|answer|instructions?|task)\b[^\n:]{0,20}:", re.IGNORECASE
)
BREAKS = [  # what may end the last document, as soon as no other document holds the like
    re.compile(r"\n"),
    re.compile(r"\n[ \t]*\n"),
    re.compile(r"\n[ \t]*[-=*_~]{3,}[ \t]*(?=\n|$)"),
    re.compile(r"\n[ \t]*</[A-Za-z][\w-]*>"),
    QUESTION,
]
FENCE = re.compile(r"^[ ]{0,3}(?:```|~~~)", re.MULTILINE)
BIBLIOGRAPHY = re.compile(
    r"\W*(?:references|bibliography|literature|works cited|citations|footnotes|notes)\W*", re.IGNORECASE
)


@dataclass(frozen=True)
class Headed:
    """A document with a header, in characters of the prompt: its header begins, its text begins, its text ends."""

    header: int
    begin: int
    end: int


@dataclass(frozen=True)
class _Header:
    style: tuple[str, ...]  # all that the headers of one prompt have in common
    number: int
    begin: int
    end: int


def find(text: str) -> tuple[list[Headed], str]:
    """The documents with numbered headers, and, if there are headers but no documents, why.

    Of several messages the one with most documents counts, then the one with most text, then the last one.
    """
    headers = [_header(match) for match in HEADER_LINE.finditer(text)]
    if len(headers) < 2:
        return [], ""
    borders = [border.span() for border in MESSAGE_BORDER.finditer(text)]
    begins, ends = [0, *(end for _, end in borders)], [*(begin for begin, _ in borders), len(text)]
    found: list[list[Headed]] = []
    doubt = ""
    for index, group in groupby(headers, key=lambda header: bisect(begins, header.begin) - 1):
        documents, reason = _in_message(text, begins[index], ends[index], list(group))
        found += [documents] if documents else []
        doubt = doubt or reason
    best = list(fullest(found, lambda document: (document.begin, document.end)))
    return best, "" if best else doubt and f"numbered headers were found, but {doubt}"


def _header(match: re.Match[str]) -> _Header:
    kind = next(kind for kind in ("square", "round", "plain", "bare") if match[kind] is not None)
    style = (kind, (match["label"] or "").lower(), match["mark"] or "", match["colon"])
    return _Header(style, int(match[kind]), match.start("header"), match.end("header"))


def _in_message(text: str, begin: int, end: int, headers: Sequence[_Header]) -> tuple[list[Headed], str]:
    """The documents of the message ``text[begin:end]``, or why there are none."""
    fences = [begin + fence.start() for fence in FENCE.finditer(text[begin:end])]
    fenced = [header for header in headers if bisect(fences, header.begin) % 2]
    several = Counter(header.style for header in headers if header not in fenced)
    styles = [style for style, count in several.items() if count > 1]
    styles = [style for style in styles if style[0] != "bare"] or styles
    if len(styles) != 1:
        return [], "they are of several forms" if styles else ""
    runs = _runs([header for header in headers if header.style == styles[0] and header not in fenced])
    shots = pairwise(runs)  # a worked example has a question of its own
    parted = all(QUESTION.search(text, left[-1].end, right[0].begin) for left, right in shots)
    run = runs[-1]
    following = run[-1].number + 1, run[-1].style
    if not parted or any(run[0].number > 1 for run in runs) or following in [(h.number, h.style) for h in fenced]:
        return [], "their numbers do not run on"
    if len(run) < 2:
        return [], "only one belongs to the last question"
    if run[0].style[0] == "bare" and BIBLIOGRAPHY.fullmatch(text[begin : run[0].begin].rstrip().rpartition("\n")[2]):
        return [], "below the title of a list of references"
    return _documents(text, end, run)


def _documents(text: str, message_end: int, run: Sequence[_Header]) -> tuple[list[Headed], str]:
    """The documents below consecutive headers, or why they cannot be told."""
    ends = [header.begin for header in run[1:]]
    bodies = [text[header.end : end].strip() for header, end in zip(run, ends, strict=False)]
    last = _end_of_last(text[run[-1].end : message_end], bodies)
    if last is None:
        return [], "not where the last document ends"
    ends.append(run[-1].end + last)
    spans = [(header, *_stripped(text, header.end, end)) for header, end in zip(run, ends, strict=True)]
    if any(begin >= end for _, begin, end in spans):
        return [], "no text below one of them"
    return [Headed(header.begin, begin, end) for header, begin, end in spans], ""


def _runs(headers: Sequence[_Header]) -> list[list[_Header]]:
    runs: list[list[_Header]] = []
    for header in headers:
        if runs and header.number == runs[-1][-1].number + 1:
            runs[-1].append(header)
        else:
            runs.append([header])
    return runs


def _end_of_last(rest: str, bodies: Sequence[str]) -> int | None:
    """Where the last document ends: at the first break of a kind that no other document holds."""
    kinds = [kind for kind in BREAKS if not any(kind.search(body) for body in bodies)]
    ends = [match.start() for match in (kind.search(rest) for kind in kinds) if match]
    if ends:
        return min(ends)
    return len(rest) if BREAKS[0] in kinds else None  # documents of one line each, the last one ends the message


def _stripped(text: str, begin: int, end: int) -> tuple[int, int]:
    part = text[begin:end]
    return begin + len(part) - len(part.lstrip()), begin + len(part.rstrip())
