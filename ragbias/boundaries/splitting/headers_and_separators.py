"""The text between documents: a separator, and headers and footers, which belong to a document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ragbias.boundaries.patterns import NUMBER, NUMBERED_HEADER, common_prefix, common_suffix, holds_words
from ragbias.boundaries.spans import Span
from ragbias.errors import AmbiguousSegmentsError

MAX_FIRST_HEADER = 500  # characters before the first document in which its header is looked for
RULES = re.compile(r"(?:\s*\n[^\w\s]{3,}[ \t]*(?=\n))*\s*")  # white space and lines such as ``---``
OWN_SPACE = (
    "some documents begin or end with white space that cannot be told apart from the separator; strip the documents "
    "before they are printed, or join them with a blank line"
)
HEADER_START = re.compile(r"[\W_]*\w+\W|\S\S+\s")  # a whole word, or several characters


@dataclass(frozen=True)
class Surroundings:
    """The text around the documents of a prompt.

    Attributes:
        headers: the text before each document that belongs to it, the first one included; may be empty.
        footer: the text after each document that belongs to it, the same for all.
        separator: the text between a document with its footer and the next header, the same for all; never words.
        closed: whether the separator follows the last document as well.
    """

    headers: list[str]
    footer: str
    separator: str
    closed: bool


def surroundings(text: str, spans: Sequence[Span]) -> Surroundings:
    """Distinguish separators from headers and footers.

    Words between two documents are headers or footers. They are the same for every document if those before each are
    also before the first one, and those after each after the last one. Else they are headers, if the first one stands
    out from the prefix. So an equal value of two neighbours (``Source: a.txt`` twice) is never taken for a separator,
    and the result depends on the documents, not their order.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters; ascending, apart, at least one.

    Raises:
        AmbiguousSegmentsError: documents have footers, or the first header cannot be told apart from the prefix.
    """
    gaps = [text[left[1] : right[0]] for left, right in pairwise(spans)]
    prefix, suffix = text[: spans[0][0]], text[spans[-1][1] :]
    if len(set(gaps)) < 2:
        gap = gaps[0] if gaps else ""
        if holds_words(gap):
            constant = _constant(gap, prefix, suffix)
        else:
            constant = None if _ends_with_header(gap, prefix) else ("", "", gap)
        if constant is not None:
            header, footer, separator = constant
            closed = _closes(separator, suffix.removeprefix(footer))
            return Surroundings([header] * len(spans), footer, separator, closed)
    separator, headers = _separator_and_headers(gaps)
    first = _first_header(prefix, suffix, headers)
    return Surroundings([first, *headers], "", separator, _closes(separator, suffix))


def _ends_with_header(gap: str, prefix: str) -> bool:
    """Whether the end of a gap without words is a header that happens to hold none, such as ``## **``: it begins as the
    text before the first document does, and is not the same."""
    rules = RULES.match(gap)
    ending = gap[rules.end() :] if rules else gap
    before = "\n".join(prefix.split("\n")[-1 - ending.count("\n") :])
    return before != ending and HEADER_START.match(common_prefix(before, ending)) is not None


def _closes(separator: str, suffix: str) -> bool:
    return bool(separator) and suffix.startswith(separator)


def _constant(gap: str, prefix: str, suffix: str) -> tuple[str, str, str] | None:
    """Header, footer and separator, if the words of a gap are before the first and after the last document too."""
    header = common_suffix(prefix, gap).lstrip()
    rest = gap.removesuffix(header)
    footer = common_prefix(rest, suffix).rstrip()
    separator = rest.removeprefix(footer)
    whole = _begins_header(prefix.removesuffix(header), header) and _ends_footer(footer, suffix.removeprefix(footer))
    return (header, footer, separator) if whole and not holds_words(separator) else None


def _begins_header(before: str, header: str) -> bool:
    """Whether the header begins where ``before`` ends, not in the middle of a longer one."""
    if not before or not header[:1].isalnum():
        return True
    labelled = header[0].isdigit() or ":" in header  # as in ``Context: Content: ...`` or ``Context: 1. ...``
    if before.rstrip(" \t")[-1:] not in ("\n", ">", "[", "]", "(", ":" if labelled else "\n"):
        return False
    return before.endswith("\n\n") or not before.rstrip()[-1:].isalnum()


def _ends_footer(footer: str, after: str) -> bool:
    """Whether the footer ends where ``after`` begins, not in the middle of a longer one."""
    return not holds_words(footer) or footer.endswith(">") or after[:1] in ("", "\n")


def _separator_and_headers(gaps: Sequence[str]) -> tuple[str, list[str]]:
    """The separator of all documents, and what each gap holds for the document after it."""
    separators, headers = [], []
    for gap in gaps:  # its longest break is in the separator
        blank = max(re.finditer(r"\s+", gap), key=lambda space: (space[0].count("\n"), len(space[0])), default=None)
        separator = RULES.match(gap)
        if blank is None or separator is None or blank.start() >= separator.end():
            raise AmbiguousSegmentsError(
                "the documents are followed by text such as a footer, which cannot be told apart from the prompt after "
                "the last one; put it before the documents, or into them"
            )
        separators.append(separator[0])
        headers.append(gap[separator.end() :])
    if len(set(separators)) > 1:
        raise AmbiguousSegmentsError("the documents are separated in different ways; join them all with one separator")
    return (separators or [""])[0], headers


def _first_header(prefix: str, suffix: str, headers: Sequence[str]) -> str:
    """The end of the prefix that is the first document's header."""
    if not any(headers):
        return ""
    known = _known_first_header(prefix, headers)
    return _first_header_by_lines(prefix, suffix, headers) if known is None else known


def _known_first_header(prefix: str, headers: Sequence[str]) -> str | None:
    """The first header, if all are of a known numbered form, or the same but for their numbers."""
    tail = prefix[-MAX_FIRST_HEADER:]
    if all(NUMBERED_HEADER.fullmatch(header) for header in headers):
        known = [match for match in NUMBERED_HEADER.finditer(tail) if match.end() == len(tail)]
        if known:
            return known[-1][0]
    if len({NUMBER.sub("0", header) for header in headers}) == 1:
        same = re.search(r"\d+".join(map(re.escape, NUMBER.split(headers[0]))) + r"\Z", tail)
        if same and _begins_header(prefix.removesuffix(same[0]), same[0]):
            return same[0]
    return None


def _first_header_by_lines(prefix: str, suffix: str, headers: Sequence[str]) -> str:
    """As many last lines of the prefix as the other headers have, if all begin in the same way."""
    header = "\n".join(prefix.split("\n")[-1 - headers[0].count("\n") :])
    alike = {NUMBER.sub("0", each) for each in (header, *headers)}
    shared = common_prefix(*alike)
    same_lines = len({each.count("\n") for each in alike}) == 1
    repeated = len(alike) > 1 and shared in {each.rstrip() for each in alike}  # a title, and the same as a footer
    begins = HEADER_START.match(shared) and _begins_header(prefix.removesuffix(header), header)
    if repeated or not same_lines or not begins:
        raise AmbiguousSegmentsError(
            "the documents have headers, but the first one cannot be told apart from the text before it; "
            "begin each header on its own line, all in the same way"
        )
    if HEADER_START.match(common_prefix(shared, NUMBER.sub("0", suffix.lstrip()))):
        raise AmbiguousSegmentsError(
            "the text after the last document begins like the text between the documents, so it may be a footer; "
            "begin the headers in another way, or put them into the documents"
        )
    return header
