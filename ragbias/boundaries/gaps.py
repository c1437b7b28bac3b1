"""What stands between documents: a separator, and headers, each of which belongs to the document behind it."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ragbias.boundaries.headers import HEADER
from ragbias.errors import AmbiguousSegmentsError

NUMBER = re.compile(r"\d+")
CONTEXT = 500  # characters before the first document in which its header is looked for


@dataclass(frozen=True)
class Gaps:
    """A prompt around its documents.

    Attributes:
        headers: what stands before each document and belongs to it, the first one included; may be empty.
        separator: what stands between a document and the header behind it, everywhere the same.
        closed: whether the separator stands behind the last document as well.
    """

    headers: list[str]
    separator: str
    closed: bool


def split(text: str, spans: Sequence[tuple[int, int]]) -> Gaps:
    """Tell separators from headers.

    Where all gaps are the same words, as of tags around each document, their end is the header if it stands before the
    first document too, and the rest is the separator if it stands behind the last one too.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters; ascending, apart, at least one.

    Raises:
        AmbiguousSegmentsError: documents carry footers, or headers whose first one cannot be told from the prefix.
    """
    gaps = [text[left[1] : right[0]] for left, right in pairwise(spans)]
    prefix, suffix = text[: spans[0][0]], text[spans[-1][1] :]
    if len(set(gaps)) == 1 and gaps[0].strip(string.whitespace + string.punctuation):
        shared = os.path.commonprefix([prefix[::-1], gaps[0][::-1]])[::-1]  # noqa: RUF071 - by character is meant
        for header in (shared.lstrip(), shared):
            separator = gaps[0].removesuffix(header)
            if suffix.startswith(separator):
                return Gaps([header] * len(spans), separator, True)
    separator, headers = _separator_and_headers(gaps)
    first = _first_header(prefix, headers)
    return Gaps([first, *headers], separator, bool(separator) and suffix.startswith(separator))


def with_headers(text: str, spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The spans, each with the header before it; white space and punctuation alone are no header.

    Raises:
        AmbiguousSegmentsError: as ``split``.
    """
    headers = [header.lstrip() for header in split(text, spans).headers] if spans else []
    return tuple(
        (begin - len(header) if re.search(r"\w", header) else begin, end)
        for header, (begin, end) in zip(headers, spans, strict=True)
    )


def _separator_and_headers(gaps: Sequence[str]) -> tuple[str, list[str]]:
    """What stands between all documents, and what each gap holds for the document behind it."""
    if len(set(gaps)) == 1 and (len(gaps) > 1 or not gaps[0].strip(string.whitespace + string.punctuation)):
        return gaps[0], [""] * len(gaps)
    separators, headers = [], []
    for gap in gaps:  # its longest break is the separator
        blank = max(re.finditer(r"\s+", gap), key=lambda run: (run[0].count("\n"), len(run[0])), default=None)
        if blank is None or blank.start():
            raise AmbiguousSegmentsError(
                "the documents are followed by text of their own (a footer of the document template?), which cannot be "
                "told from the prompt behind the last one; put it in front of the text, or into the documents"
            )
        separators.append(blank[0])
        headers.append(gap[blank.end() :])
    if len(set(separators)) > 1:
        raise AmbiguousSegmentsError("the documents are separated in different ways; join them all with one separator")
    return (separators or [""])[0], headers


def _first_header(prefix: str, headers: Sequence[str]) -> str:
    """The end of the prefix that is the first document's header."""
    if not any(headers):
        return ""
    tail = prefix[-CONTEXT:]
    if all(HEADER.fullmatch(header) for header in headers):
        known = [match for match in HEADER.finditer(tail) if match.end() == len(tail)]
        if known:
            return known[-1][0]
    shapes = {NUMBER.sub("0", header) for header in headers}
    if len(shapes) == 1:  # all alike but for their numbers
        alike = re.search(r"\d+".join(map(re.escape, NUMBER.split(headers[0]))) + r"\Z", tail)
        if alike:
            return alike[0]
    lines = prefix.split("\n")  # as many lines, beginning as the others do
    header = "\n".join(lines[-1 - headers[0].count("\n") :])
    shared = os.path.commonprefix([NUMBER.sub("0", each) for each in (header, *headers)])  # noqa: RUF071
    if len(shared.strip()) < 2:
        raise AmbiguousSegmentsError(
            "the documents have headers, but the first one cannot be told from the text before it; "
            "let each header begin on a line of its own, all in the same way"
        )
    return header
