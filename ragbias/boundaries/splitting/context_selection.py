"""Which of the documents that occur in a prompt are its context, and where each begins and ends there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragbias.boundaries.matching.occurrences import Occurrence, is_bounded
from ragbias.boundaries.patterns import QUESTION_LABEL, QUESTION_LINE
from ragbias.boundaries.spans import Span, largest_group
from ragbias.boundaries.splitting.document_groups import document_groups
from ragbias.boundaries.splitting.headers_and_separators import split
from ragbias.boundaries.splitting.metadata_blocks import Fields, with_metadata
from ragbias.boundaries.splitting.outermost import is_long
from ragbias.errors import AmbiguousSegmentsError

QUESTION_BEFORE = re.compile(rf"[^\S\n]*{QUESTION_LABEL.pattern}", re.IGNORECASE)


@dataclass(frozen=True)
class ContextSelection:
    """The documents that are the context of a prompt.

    Attributes:
        occurrences: the documents' texts, in ascending order.
        spans: the same with what belongs to each document by its metadata, in characters.
        n_ambiguous: number of documents beside them in the same message that cannot be told from the text around them.
            While there are any, the order of all documents still counts, whatever is done with the selected ones.
    """

    occurrences: Sequence[Occurrence]
    spans: Sequence[Span]
    n_ambiguous: int = 0

    @classmethod
    def of_texts(cls, occurrences: Sequence[Occurrence], n_ambiguous: int = 0) -> ContextSelection:
        """Documents to which nothing belongs but their texts."""
        return cls(occurrences, [each.span for each in occurrences], n_ambiguous)

    @property
    def n_in_message(self) -> int:
        """Number of documents in the message, selected or ambiguous."""
        return len(self.occurrences) + self.n_ambiguous


def select_context(
    text: str, occurrences: Sequence[Occurrence], fields: Mapping[str, Fields], lenient: bool = False
) -> ContextSelection:
    """The documents of a message that are its context.

    First, those that all have their metadata around them in the same way; else the largest group that is
    joined by bare separators or by like headers and footers. That group is right only if no document is beside it.
    Which documents are selected so never depends on their order.

    Args:
        text: the prompt.
        occurrences: in one message, in ascending order, not overlapping.
        fields: by text, its metadata.
        lenient: as in ``document_groups``.
    """
    certain = [each for each in occurrences if not each.doubtful]
    if len(certain) < len(occurrences):
        return ContextSelection.of_texts(certain, len(occurrences) - len(certain))
    group = largest_group(document_groups(text, occurrences, lenient), lambda each: each.span)
    if fields:
        for several in (occurrences, [each for each in occurrences if not _is_quoted(text, each, occurrences)]):
            texts = [each.span for each in several]
            try:
                spans = with_metadata(text, texts, [fields.get(each.document, {}) for each in several])
            except AmbiguousSegmentsError:
                return ContextSelection.of_texts((), len(several))
            if spans:
                return ContextSelection(several, spans)
    if len(group) == len(occurrences):
        return ContextSelection.of_texts(group)
    wider = [each for each in occurrences if each in group or _is_context(text, each, group)]
    if len(wider) > len(group) > 0:
        try:
            split(text, [each.span for each in wider])
        except AmbiguousSegmentsError:
            return ContextSelection.of_texts(group, len(wider) - len(group))
        group = wider
    return ContextSelection.of_texts(group)


def _is_context(text: str, occurrence: Occurrence, group: Sequence[Occurrence]) -> bool:
    """Whether a document apart from the group seems to be one of the context, not one that a question quotes."""
    bounded = is_bounded(text, occurrence.begin, occurrence.end)
    return is_long(occurrence.document) and bounded and not _is_quoted(text, occurrence, [*group, occurrence])


def _is_quoted(text: str, occurrence: Occurrence, others: Sequence[Occurrence]) -> bool:
    """Whether it follows ``Question:`` or the like, be it in the same line or between another document and it."""
    line = text.rfind("\n", 0, occurrence.begin) + 1
    if QUESTION_BEFORE.match(text, line, occurrence.begin):
        return True
    before = [other.end for other in others if other.end <= occurrence.begin]
    return bool(before) and QUESTION_LINE.search(text, max(before), occurrence.begin) is not None
