"""Which of the places where documents stand are the context, and where each document begins and ends there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragbias.boundaries.matching.occurrences import MESSAGE_BORDER, Hit, is_bounded, span_of
from ragbias.boundaries.sources.numbered_headers import QUESTION
from ragbias.boundaries.spans import Span, fullest
from ragbias.boundaries.splitting.document_groups import split_runs
from ragbias.boundaries.splitting.headers_and_separators import split
from ragbias.boundaries.splitting.metadata_blocks import blocks
from ragbias.errors import AmbiguousSegmentsError

MIN_CHARACTERS = 8  # shorter texts stand in too many places by chance
LABEL = re.compile(r"[^\S\n]*" + QUESTION.pattern.removeprefix(r"\n[ \t]*"), re.IGNORECASE)
Known = Mapping[str, dict[str, list[str]]]


@dataclass(frozen=True)
class Standing:
    """The documents that stand together.

    Attributes:
        hits: the documents' texts, in ascending order.
        spans: the same with what belongs to each document by its metadata.
        rest: documents beside them in the same message that cannot be told from the text around them. While there are
            any, the order of all documents still counts, whatever is done with those that stand together.
    """

    hits: list[Hit]
    spans: list[Span]
    rest: int = 0

    @property
    def in_blocks(self) -> bool:
        """Whether a document has more to it than its text."""
        return self.spans != [span_of(hit) for hit in self.hits]


def bare(hits: list[Hit], rest: int = 0) -> Standing:
    """Documents without anything around them."""
    return Standing(hits, [span_of(hit) for hit in hits], rest)


def standing(text: str, hits: Sequence[Hit], known: Known, lenient: bool = False) -> Standing:
    """The documents that stand together.

    First, those of one message that stand in blocks with their metadata; else the largest group that is joined by bare
    separators or by like headers and footers. That group is right only if no document stands beside it. Which documents
    are found so never depends on their order.

    Args:
        text: the prompt.
        hits: in ascending order, not overlapping.
        known: the metadata of texts.
        lenient: as in ``split_runs``.
    """
    run = list(fullest(split_runs(text, hits, lenient), span_of))
    if known:
        message = _message(text, hits, run)
        for group in (message, [hit for hit in message if not _is_quoted(text, hit, message)]):
            places = [span_of(hit) for hit in group]
            spans = blocks(text, places, [known.get(hit.document, {}) for hit in group]) if len(group) > 1 else None
            if spans:
                return Standing(list(group), spans)
    if len(run) == len(hits):
        return bare(run)
    message = [hit for hit in _message(text, hits, run) if hit in run or _is_context(text, hit, run)]
    if len(message) > len(run) > 0:
        try:
            split(text, [span_of(hit) for hit in message])
        except AmbiguousSegmentsError:
            return bare(run, len(message) - len(run))
        run = message
    return bare(run)


def _message(text: str, hits: Sequence[Hit], run: Sequence[Hit]) -> list[Hit]:
    """The hits in the message in which the run stands."""
    begin = end = hits.index(run[0]) if run else 0
    while begin > 0 and not MESSAGE_BORDER.search(text, hits[begin - 1].end, hits[begin].begin):
        begin -= 1
    while end + 1 < len(hits) and not MESSAGE_BORDER.search(text, hits[end].end, hits[end + 1].begin):
        end += 1
    return list(hits[begin : end + 1])


def _is_context(text: str, hit: Hit, run: Sequence[Hit]) -> bool:
    """Whether a document apart from the run seems to be one of the context, not one that a question quotes."""
    long = len(hit.document.strip()) >= MIN_CHARACTERS
    return long and is_bounded(text, hit.begin, hit.end) and not _is_quoted(text, hit, [*run, hit])


def _is_quoted(text: str, hit: Hit, others: Sequence[Hit]) -> bool:
    """Whether it stands behind ``Question:`` or the like, be it in its own line or behind another document."""
    line = text.rfind("\n", 0, hit.begin) + 1
    if LABEL.match(text, line, hit.begin):
        return True
    before = [other.end for other in others if other.end <= hit.begin]
    return bool(before) and QUESTION.search(text, max(before), hit.begin) is not None
