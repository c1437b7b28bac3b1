"""Split a prompt at its documents. The set of segments does not depend on the order of the documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ragbias.boundaries.text import (
    MESSAGE_BORDER,
    NUMBER,
    NUMBERED_HEADER,
    ROLE,
    CharSpan,
    Margins,
    common_prefix,
    common_suffix,
    enclosing_elements,
    gaps_between,
    holds_words,
    margins_of,
    stripped,
    with_margins,
)
from ragbias.errors import AmbiguousSegmentsError

MAX_FIRST_HEADER = 500  # number of characters before the first document that are searched for its header
RULES = re.compile(r"(?:\s*\n[^\w\s]{3,}[ \t]*(?=\n))*\s*")  # white space and lines such as ``---``
OWN_SPACE = (
    "some documents begin or end with white space that cannot be distinguished from the separator; "
    "strip the documents, or join them with a blank line"
)
STRIPPING_HELPS = "strip_numbering=True takes the numbers out of the headers"
ONLY_SPACE = "only their own white space separates the documents; join them with a separator"
HEADER_START = re.compile(r"[\W_]*\w+\W|\S\S+\s")  # a whole word, or several non-white characters
MAX_OPENING = 60  # number of characters that are searched for the start of a message or string literal
MESSAGE_OPENING = re.compile(rf"(?:(?:{MESSAGE_BORDER.pattern})\s*(?:{ROLE})?\s*|[:\[(,]\s*[\"'])\Z")


@dataclass(frozen=True)
class DocumentNumbers:
    """The numbers of a prompt's documents.

    Attributes:
        cuts: spans of the numbers in the prompt, ascending, each with the index of its document.
        doubtful: whether other text also counts with the position. It may belong to the documents, so it is not cut.
    """

    cuts: tuple[tuple[CharSpan, int], ...] = ()
    doubtful: bool = False

    @property
    def seen(self) -> bool:
        """Whether the prompt reveals the order of the documents."""
        return bool(self.cuts) or self.doubtful

    def stripped(self, text: str, spans: Sequence[CharSpan]) -> tuple[str, list[CharSpan]]:
        """Return the prompt without the cuts, and the new spans of the documents."""
        edges = [0, *(edge for span, _ in self.cuts for edge in span), len(text)]
        bare = "".join(text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True))
        return bare, [(self._moved(begin), self._moved(end)) for begin, end in spans]

    def _moved(self, position: int) -> int:
        return position - sum(min(end, position) - begin for (begin, end), _ in self.cuts if begin < position)


class SplitPrompt(NamedTuple):
    """The parts of a prompt. ``lead`` is the added separator before the first document."""

    prefix: str
    documents: tuple[str, ...]
    suffix: str
    lead: str = ""


def split(text: str, spans: Sequence[CharSpan], numbering: DocumentNumbers, strip_numbering: bool) -> SplitPrompt:
    """Split a prompt into documents. Each has its header, footer and number, and one separator.

    There is at least one span. The spans ascend and do not overlap. Raise ``AmbiguousSegmentsError`` if the text
    around the documents cannot be split, or can be split in several ways.
    """
    if strip_numbering:
        text, moved = numbering.stripped(text, spans)
        spans = with_margins(moved, margins_of(spans))
    try:
        return _segments(text, spans)
    except AmbiguousSegmentsError as error:
        if strip_numbering or not numbering.cuts:
            raise
        split(text, spans, numbering, strip_numbering=True)  # raises an error if this does not help
        raise AmbiguousSegmentsError(f"{error}; {STRIPPING_HELPS}") from error


def _segments(text: str, spans: Sequence[CharSpan]) -> SplitPrompt:
    """Split a prompt. Raise an error if the parts depend on the outer white space of a document."""
    spans = enclosing_elements(text, spans)
    if not spans:
        raise AmbiguousSegmentsError(
            "the tags around the documents also occur in or between them; choose other tags, or pass all documents"
        )
    margins = margins_of(spans)
    if not any(margins):
        return _cut(text, spans, margins)
    bare = [stripped(text, span) for span in spans]
    try:
        in_full = _cut(text, spans, margins)
    except AmbiguousSegmentsError as error:
        if str(error) == ONLY_SPACE:  # only white space of the documents separates them
            raise
        return _cut(text, bare, margins)
    try:
        in_part = _cut(text, bare, margins)
    except AmbiguousSegmentsError:
        return in_full
    if in_full != in_part:
        raise AmbiguousSegmentsError(OWN_SPACE)
    return in_full


def _cut(text: str, spans: Sequence[CharSpan], margins: Margins) -> SplitPrompt:
    """Split a prompt. Strip the sides of documents with margins, unless a header or footer is there.

    If a separator follows the last document, each document ends with one. Otherwise each document begins with one.
    """
    headers, footer, separator = _surroundings(text, spans)
    prefix, suffix = text[: spans[0][0] - len(headers[0])], text[spans[-1][1] + len(footer) :]
    texts = [text[begin:end] for begin, end in spans]
    apart = separator or footer or any(headers)
    if any(margins) and (not apart or len({bool(header) for header in headers}) > 1):
        raise AmbiguousSegmentsError(ONLY_SPACE)
    if margins.left and not headers[0]:
        texts = [body.lstrip() for body in texts]
        rest = separator.rstrip()
        space = _normal_space(separator[len(rest) :])
        separator, prefix = rest + space, (prefix.rstrip() + space) if prefix.strip() else ""
    if margins.right and not footer:
        texts = [body.rstrip() for body in texts]
        rest = separator.lstrip()
        space = _normal_space(separator[: len(separator) - len(rest)])
        separator, suffix = space + rest, space + suffix.lstrip()
    bodies = [header + body + footer for header, body in zip(headers, texts, strict=True)]
    if separator and suffix.startswith(separator):
        return SplitPrompt(prefix, tuple(body + separator for body in bodies), suffix.removeprefix(separator))
    lead = "" if prefix.endswith(separator) else separator
    return SplitPrompt(prefix.removesuffix(separator), tuple(separator + body for body in bodies), suffix, lead)


def _normal_space(space: str) -> str:
    return "\n\n" if len(space.splitlines()) > 1 or space.endswith(("\n", "\r")) else " " * bool(space)


class _Surroundings(NamedTuple):
    """The text around the documents of a prompt."""

    headers: list[str]  # text before each document; may be empty
    footer: str  # text after each document
    separator: str  # text between a footer and the next header, without words


def _surroundings(text: str, spans: Sequence[CharSpan]) -> _Surroundings:
    """Distinguish separators from headers and footers. Raise ``AmbiguousSegmentsError`` if that is impossible.

    Words between two documents are headers or footers. If the same header also precedes the first document, and the
    same footer follows the last one, all documents share this header and footer. Otherwise the words are headers,
    provided that the first header can be distinguished from the prefix. Words are never separators, not even if two
    neighbours share them. Therefore the result does not depend on the order of the documents.
    """
    gaps = gaps_between(text, spans)
    prefix, suffix = text[: spans[0][0]], text[spans[-1][1] :]
    if len(set(gaps)) < 2:
        gap = gaps[0] if gaps else ""
        if holds_words(gap):
            constant = _constant(gap, prefix, suffix)
        else:
            constant = None if _ends_with_header(gap, prefix) else ("", "", gap)
        if constant is not None:
            header, footer, separator = constant
            return _Surroundings([header] * len(spans), footer, separator)
    separator, headers = _separator_and_headers(gaps)
    first = _first_header(prefix, suffix, headers)
    return _Surroundings([first, *headers], "", separator)


def _ends_with_header(gap: str, prefix: str) -> bool:
    """Whether a gap without words and the prefix end with similar headers, such as ``## **``."""
    rules = RULES.match(gap)
    ending = gap[rules.end() :] if rules else gap
    before = "\n".join(prefix.split("\n")[-1 - ending.count("\n") :])
    return before != ending and HEADER_START.match(common_prefix(before, ending)) is not None


def _constant(gap: str, prefix: str, suffix: str) -> tuple[str, str, str] | None:
    """Return header, footer and separator if the words of a gap also surround all documents."""
    header = common_suffix(prefix, gap).lstrip()
    rest = gap.removesuffix(header)
    footer = common_prefix(rest, suffix).rstrip()
    separator = rest.removeprefix(footer)
    whole = _begins_header(prefix.removesuffix(header), header) and _ends_footer(footer, suffix.removeprefix(footer))
    return (header, footer, separator) if whole and not holds_words(separator) else None


def _begins_header(before: str, header: str) -> bool:
    """Whether the header is complete, given the text ``before`` it."""
    if not before or not header[:1].isalnum():
        return True
    if MESSAGE_OPENING.search(before[-MAX_OPENING:]):
        return True
    labelled = header[0].isdigit() or ":" in header  # labels occur in ``Context: Content: ...`` or ``Context: 1. ...``
    if before.rstrip(" \t")[-1:] not in ("\n", ">", "[", "]", "(", ":" if labelled else "\n"):
        return False
    return before.endswith("\n\n") or not before.rstrip()[-1:].isalnum()


def _ends_footer(footer: str, after: str) -> bool:
    """Whether the footer is complete, given the text ``after`` it."""
    return not holds_words(footer) or footer.endswith(">") or after[:1] in ("", "\n")


def _separator_and_headers(gaps: Sequence[str]) -> tuple[str, list[str]]:
    """Return the common separator, and the header at the end of each gap."""
    separators, headers = [], []
    for gap in gaps:  # the longest break is part of the separator
        blank = max(re.finditer(r"\s+", gap), key=lambda space: (space[0].count("\n"), len(space[0])), default=None)
        separator = RULES.match(gap)
        if blank is None or separator is None or blank.start() >= separator.end():
            raise AmbiguousSegmentsError(
                "text, such as a footer or a number, follows each document, so the end of the last one is "
                "ambiguous; put this text before each document, or into it"
            )
        separators.append(separator[0])
        headers.append(gap[separator.end() :])
    if len(set(separators)) > 1:
        raise AmbiguousSegmentsError("the documents are separated in different ways; join all with one separator")
    return (separators or [""])[0], headers


def _first_header(prefix: str, suffix: str, headers: Sequence[str]) -> str:
    """Return the header of the first document, at the end of the prefix."""
    if not any(headers):
        return ""
    known = _known_first_header(prefix, headers)
    return _first_header_by_lines(prefix, suffix, headers) if known is None else known


def _known_first_header(prefix: str, headers: Sequence[str]) -> str | None:
    """Return the first header if all headers have a known form with a number, or differ only in their numbers."""
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
    """Return the last lines of the prefix, as many as other headers have, if all headers begin with the same text."""
    header = "\n".join(prefix.split("\n")[-1 - headers[0].count("\n") :])
    alike = {NUMBER.sub("0", other) for other in (header, *headers)}
    shared = common_prefix(*alike)
    same_lines = len({header.count("\n") for header in alike}) == 1
    repeated = len(alike) > 1 and shared in {header.rstrip() for header in alike}  # a repeated title may be a footer
    begins = HEADER_START.match(shared) and _begins_header(prefix.removesuffix(header), header)
    if repeated or not same_lines or not begins:
        raise AmbiguousSegmentsError(
            "the documents have headers, but the first one cannot be distinguished from the text before it; "
            "begin all headers with the same words, each on its own line"
        )
    if HEADER_START.match(common_prefix(shared, NUMBER.sub("0", suffix.lstrip()))):
        raise AmbiguousSegmentsError(
            "the text after the last document begins like the headers, so these may be footers; "
            "begin the headers differently, or put them into the documents"
        )
    return header
