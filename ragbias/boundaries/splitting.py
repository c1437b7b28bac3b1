"""Split a prompt at its documents. Reordering the documents reorders the segments without changing them."""

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
    add_margins,
    common_prefix,
    common_suffix,
    contains_words,
    enclosing_elements,
    gaps_between,
    margins_of,
    strip_span,
    texts_outside,
)
from ragbias.errors import AmbiguousSegmentsError

MAX_FIRST_HEADER = 500  # characters before the first document that are searched for its header
RULES = re.compile(r"(?:\s*\n[^\w\s]{3,}(?=\n))*\s*")  # white space and lines such as ``---``, but not ``### ``
BREAK = re.compile(r"\n\s*|[^\S\n]+")  # without the blanks at the end of a line, as in an empty heading, ``### ``
AMBIGUOUS_SPACE = (
    "some documents begin or end with white space that cannot be distinguished from the separator; "
    "strip the documents, or join them with a blank line"
)
STRIPPING_HELPS = "strip_numbering=True removes the numbers from the headers"
ONLY_SPACE = "only the documents' own white space separates them; join the documents with a separator"
UNKNOWN_HEADER = (
    "the documents have headers, but the first one cannot be distinguished from the text before it, or the text after "
    "the last document begins like them; begin all headers with the same words, each on its own line"
)
HEADER_START = re.compile(r"[\W_]*\w+\W|\S\S+\s")  # a whole word, or several non-white characters
MAX_OPENING = 60  # characters that are searched for the start of a message or string literal
MESSAGE_OPENING = re.compile(rf"(?:(?:{MESSAGE_BORDER.pattern})\s*(?:{ROLE})?\s*|[:\[(,]\s*[\"'])\Z")


@dataclass(frozen=True)
class DocumentNumbers:
    """The numbers of a prompt's documents.

    Attributes:
        cuts: ascending spans of the numbers that can be removed.
        doubtful: whether the prompt contains other counters, such as letters. They are not removed, because they may
            belong to the documents.
    """

    cuts: tuple[CharSpan, ...] = ()
    doubtful: bool = False

    @property
    def reveal_order(self) -> bool:
        """Whether the prompt reveals the order of the documents."""
        return bool(self.cuts) or self.doubtful

    def strip_from(self, text: str, spans: Sequence[CharSpan]) -> tuple[str, list[CharSpan]]:
        """Remove the numbers from a prompt. Return the new prompt and the new spans of the documents."""
        bare = "".join(texts_outside(text, self.cuts))
        return bare, [(self._new_position(begin), self._new_position(end)) for begin, end in spans]

    def _new_position(self, position: int) -> int:
        return position - sum(min(end, position) - begin for begin, end in self.cuts if begin < position)


class PromptParts(NamedTuple):
    """The parts of a prompt. ``lead`` is the separator that was added before the first document, if any."""

    prefix: str
    documents: tuple[str, ...]
    suffix: str
    lead: str = ""


def split(text: str, spans: Sequence[CharSpan], numbering: DocumentNumbers, strip_numbering: bool) -> PromptParts:
    """Split a prompt into prefix, documents and suffix. Each document includes its header, its footer and a separator.

    There is at least one span. Spans are ascending and disjoint. Raise ``AmbiguousSegmentsError`` if the text around
    the documents cannot be split, or can be split in several ways.
    """
    if strip_numbering:
        margins = margins_of(spans)
        text, moved = numbering.strip_from(text, spans)
        spans = [add_margins(span, margins) for span in moved]
    try:
        return _split_unambiguously(text, spans)
    except AmbiguousSegmentsError as error:
        if strip_numbering or not numbering.cuts:
            raise
        split(text, spans, numbering, strip_numbering=True)  # raises an error if this does not help
        raise AmbiguousSegmentsError(f"{error}; {STRIPPING_HELPS}") from error


def _split_unambiguously(text: str, spans: Sequence[CharSpan]) -> PromptParts:
    """Split a prompt. Raise an error if the white space at the ends of a document may belong to the separator."""
    spans = enclosing_elements(text, spans)
    if not spans:
        raise AmbiguousSegmentsError(
            "the tags around the documents also occur inside or between them; choose other tags, or pass all documents"
        )
    margins = margins_of(spans)
    if not any(margins):
        return _split_at_spans(text, spans, margins)
    bare = [strip_span(text, span) for span in spans]
    try:
        in_full = _split_at_spans(text, spans, margins)
    except AmbiguousSegmentsError as error:
        if str(error) == ONLY_SPACE:  # only white space of the documents separates them
            raise
        return _split_at_spans(text, bare, margins)
    try:
        in_part = _split_at_spans(text, bare, margins)
    except AmbiguousSegmentsError:
        return in_full
    if in_full != in_part:
        raise AmbiguousSegmentsError(AMBIGUOUS_SPACE)
    return in_full


def _split_at_spans(text: str, spans: Sequence[CharSpan], margins: Margins) -> PromptParts:
    """Split a prompt, and strip leading or trailing white space that differs between documents (``margins``).

    White space before a document stays if the document has a header. White space after it stays if it has a footer.

    Each document ends with a separator if one follows the last document. Otherwise each document begins with one.
    """
    headers, footer, separator = _surroundings(text, spans)
    prefix, suffix = text[: spans[0][0] - len(headers[0])], text[spans[-1][1] + len(footer) :]
    texts = [text[begin:end] for begin, end in spans]
    apart = separator or footer or any(headers)
    some_have_headers = any(headers) and not all(headers)
    if any(margins) and (not apart or some_have_headers):
        raise AmbiguousSegmentsError(ONLY_SPACE)
    if margins.leading and not headers[0]:
        texts = [body.lstrip() for body in texts]
        rest = separator.rstrip()
        space = _normalise_space(separator[len(rest) :])
        separator = rest + space
        prefix = prefix.rstrip() + space if prefix.strip() else ""
    if margins.trailing and not footer:
        texts = [body.rstrip() for body in texts]
        rest = separator.lstrip()
        space = _normalise_space(separator[: len(separator) - len(rest)])
        separator = space + rest
        suffix = space + suffix.lstrip()
    bodies = [header + body + footer for header, body in zip(headers, texts, strict=True)]
    if separator and suffix.startswith(separator):
        return PromptParts(prefix, tuple(body + separator for body in bodies), suffix.removeprefix(separator))
    lead = "" if prefix.endswith(separator) else separator
    return PromptParts(prefix.removesuffix(separator), tuple(separator + body for body in bodies), suffix, lead)


def _normalise_space(space: str) -> str:
    if len(space.splitlines()) > 1 or space.endswith(("\n", "\r")):
        return "\n\n"
    return " " if space else ""


def _surroundings(text: str, spans: Sequence[CharSpan]) -> tuple[list[str], str, str]:
    """Return the header of each document, the footer of all documents, and the separator. They may be empty.

    Words between two documents are headers or footers, never separators. If the same words also precede the first
    document or follow the last one, they are a header or footer that all documents share. Otherwise the words are
    headers. The result does not depend on the order of the documents. Raise ``AmbiguousSegmentsError`` if headers,
    footers and separators cannot be distinguished.
    """
    gaps = gaps_between(text, spans)
    prefix, suffix = text[: spans[0][0]], text[spans[-1][1] :]
    if len(set(gaps)) < 2:
        gap = gaps[0] if gaps else ""
        if contains_words(gap):
            constant = _shared_header_and_footer(gap, prefix, suffix)
        else:
            constant = None if _ends_with_header(gap, prefix) else ("", "", gap)
        if constant is not None:
            header, footer, separator = constant
            return [header] * len(spans), footer, separator
    separator, headers = _separator_and_headers(gaps)
    first = _first_header(prefix, suffix, headers) if any(headers) else ""
    return [first, *headers], "", separator


def _ends_with_header(gap: str, prefix: str) -> bool:
    """Whether a gap and the prefix end with similar headers that contain no words."""
    rules = RULES.match(gap)
    ending = gap[rules.end() :] if rules else gap
    before = "\n".join(prefix.split("\n")[-1 - ending.count("\n") :])
    return before != ending and HEADER_START.match(common_prefix(before, ending)) is not None


def _shared_header_and_footer(gap: str, prefix: str, suffix: str) -> tuple[str, str, str] | None:
    """Return header, footer and separator if all documents share the header and footer in a gap, else ``None``."""
    header = common_suffix(prefix, gap).lstrip()
    rest = gap.removesuffix(header)
    footer = common_prefix(rest, suffix).rstrip()
    separator = rest.removeprefix(footer)
    if contains_words(separator) or not _begins_header(prefix.removesuffix(header), header):
        return None
    return (header, footer, separator) if _ends_footer(footer, suffix.removeprefix(footer)) else None


def _begins_header(before: str, header: str) -> bool:
    """Whether ``header`` is complete: it is not the end of a longer header that begins in ``before``."""
    if not before or not header[:1].isalnum():
        return True
    if MESSAGE_OPENING.search(before[-MAX_OPENING:]):
        return True
    labelled = header[0].isdigit() or ":" in header  # labels occur in ``Context: Content: ...`` or ``Context: 1. ...``
    openings = ("\n", ">", "[", "]", "(", ":") if labelled else ("\n", ">", "[", "]", "(")
    if before.rstrip(" \t")[-1:] not in openings:
        return False
    return before.endswith("\n\n") or not before.rstrip()[-1:].isalnum()


def _ends_footer(footer: str, after: str) -> bool:
    """Whether ``footer`` is complete: it has no words, ends with a tag, or is at the end of its line or the prompt."""
    return not contains_words(footer) or footer.endswith(">") or after[:1] in ("", "\n")


def _separator_and_headers(gaps: Sequence[str]) -> tuple[str, list[str]]:
    """Return the common separator, and the header at the end of each gap."""
    separators, headers = [], []
    for gap in gaps:  # the longest break is part of the separator
        blank = max(BREAK.finditer(gap), key=lambda space: (space[0].count("\n"), len(space[0])), default=None)
        separator = RULES.match(gap)
        if blank is None or separator is None or blank.start() >= separator.end():
            raise AmbiguousSegmentsError(
                "text, such as a footer or a number, follows each document, so the end of the last document "
                "is ambiguous; put this text before or inside each document"
            )
        separators.append(separator[0])
        headers.append(gap[separator.end() :])
    if len(set(separators)) > 1:
        raise AmbiguousSegmentsError("different separators join the documents; join all with the same separator")
    return (separators or [""])[0], headers


def _first_header(prefix: str, suffix: str, headers: Sequence[str]) -> str:
    """Return the first document's header: numbered like the others, or with the same first words as the others."""
    if header := _numbered_first_header(prefix, headers):
        return header
    header = "\n".join(prefix.split("\n")[-1 - headers[0].count("\n") :])
    alike = {NUMBER.sub("0", other) for other in (header, *headers)}
    shared = common_prefix(*alike)
    repeated = len(alike) > 1 and shared in {header.rstrip() for header in alike}  # a repeated title may be a footer
    of_suffix = common_prefix(shared, NUMBER.sub("0", suffix.lstrip()))
    same_lines = len({header.count("\n") for header in alike}) == 1
    if repeated or not same_lines or not HEADER_START.match(shared) or HEADER_START.match(of_suffix):
        raise AmbiguousSegmentsError(UNKNOWN_HEADER)
    if not _begins_header(prefix.removesuffix(header), header):
        raise AmbiguousSegmentsError(UNKNOWN_HEADER)
    return header


def _numbered_first_header(prefix: str, headers: Sequence[str]) -> str:
    """Return the first document's header if headers are numbered or differ only in numbers, otherwise ""."""
    tail = prefix[-MAX_FIRST_HEADER:]
    if all(NUMBERED_HEADER.fullmatch(header) for header in headers):
        known = [match for match in NUMBERED_HEADER.finditer(tail) if match.end() == len(tail)]
        if known:
            return known[-1][0]
    if len({NUMBER.sub("0", header) for header in headers}) == 1:
        same = re.search(r"\d+".join(map(re.escape, NUMBER.split(headers[0]))) + r"\Z", tail)
        if same and _begins_header(prefix.removesuffix(same[0]), same[0]):
            return same[0]
    return ""
