"""What stands between documents: a separator, and headers, each of which belongs to the document behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ragbias.boundaries.matching.occurrences import NUMBER, common_prefix, common_suffix, holds_words
from ragbias.boundaries.sources.numbered_headers import HEADER
from ragbias.errors import AmbiguousSegmentsError

CONTEXT = 500  # characters before the first document in which its header is looked for
RULES = re.compile(r"(?:\s*\n[^\w\s]{3,}[ \t]*(?=\n))*\s*")  # white space and lines such as ``---``
LABEL = re.compile(r"[\W_]*\w+\W|\S\S+\s")  # a whole word, or a mark of several characters


@dataclass(frozen=True)
class Gaps:
    """A prompt around its documents.

    Attributes:
        headers: what stands before each document and belongs to it, the first one included; may be empty.
        footer: what stands behind each document and belongs to it, everywhere the same.
        separator: what stands between a document with its footer and the header behind it, everywhere the same; never
            words.
        closed: whether the separator stands behind the last document as well.
    """

    headers: list[str]
    footer: str
    separator: str
    closed: bool


def split(text: str, spans: Sequence[tuple[int, int]]) -> Gaps:
    """Tell separators from headers and footers.

    Words between two documents belong to one of them, to which one is read off the text around all: they are the same
    for every document if those before each also stand before the first one, and those behind each behind the last one.
    Else they are headers, if the first one can be told from the prefix. So an equal value of two neighbours
    (``Source: a.txt`` twice) is never taken for a separator, and the result depends on the documents, not their order.

    Args:
        text: the prompt.
        spans: ``(begin, end)`` of each document in characters; ascending, apart, at least one.

    Raises:
        AmbiguousSegmentsError: documents carry footers, or headers whose first one cannot be told from the prefix.
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
            return Gaps([header] * len(spans), footer, separator, _closes(separator, suffix.removeprefix(footer)))
    separator, headers = _separator_and_headers(gaps)
    first = _first_header(prefix, suffix, headers)
    return Gaps([first, *headers], "", separator, _closes(separator, suffix))


def _ends_with_header(gap: str, prefix: str) -> bool:
    """Whether marks at the end of a gap without words are a header that happens to hold none, such as ``## **``: they
    begin as the text before the first document does, and are not the same."""
    rules = RULES.match(gap)
    marks = gap[rules.end() :] if rules else gap
    before = "\n".join(prefix.split("\n")[-1 - marks.count("\n") :])
    return before != marks and LABEL.match(common_prefix(before, marks)) is not None


def _closes(separator: str, suffix: str) -> bool:
    return bool(separator) and suffix.startswith(separator)


def _constant(gap: str, prefix: str, suffix: str) -> tuple[str, str, str] | None:
    """Header, footer and separator, if the words of a gap stand before the first and behind the last document too."""
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
    separators, headers = [], []
    for gap in gaps:  # its longest break is in the separator
        blank = max(re.finditer(r"\s+", gap), key=lambda run: (run[0].count("\n"), len(run[0])), default=None)
        separator = RULES.match(gap)
        if blank is None or separator is None or blank.start() >= separator.end():
            raise AmbiguousSegmentsError(
                "the documents are followed by text of their own (a footer of the document template?), which cannot be "
                "told from the prompt behind the last one; put it in front of the text, or into the documents"
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
    tail = prefix[-CONTEXT:]
    if all(HEADER.fullmatch(header) for header in headers):
        known = [match for match in HEADER.finditer(tail) if match.end() == len(tail)]
        if known:
            return known[-1][0]
    shapes = {NUMBER.sub("0", header) for header in headers}
    if len(shapes) == 1:  # all alike but for their numbers
        same = re.search(r"\d+".join(map(re.escape, NUMBER.split(headers[0]))) + r"\Z", tail)
        if same and _begins_header(prefix.removesuffix(same[0]), same[0]):
            return same[0]
    lines = prefix.split("\n")  # as many lines, beginning as the others do
    header = "\n".join(lines[-1 - headers[0].count("\n") :])
    alike = {NUMBER.sub("0", each) for each in (header, *headers)}
    shared = common_prefix(*alike)
    same_lines = len({each.count("\n") for each in alike}) == 1
    repeated = len(alike) > 1 and shared in {each.rstrip() for each in alike}  # a title, and the same as a footer
    begins = LABEL.match(shared) and _begins_header(prefix.removesuffix(header), header)
    if repeated or not same_lines or not begins:
        raise AmbiguousSegmentsError(
            "the documents have headers, but the first one cannot be told from the text before it; "
            "let each header begin on a line of its own, all in the same way"
        )
    if LABEL.match(common_prefix(shared, NUMBER.sub("0", suffix.lstrip()))):
        raise AmbiguousSegmentsError(
            "the text behind the last document begins as the text between the documents does, so it may be a footer; "
            "let the headers begin in another way, or put them into the documents"
        )
    return header
