"""Which assigned documents form one context, and which are apart: quoted in a question, or in another message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from ragbias.boundaries.matching.occurrences import Occurrence, ends_block
from ragbias.boundaries.patterns import LETTER, MESSAGE_BORDER, NUMBER, common_prefix, common_suffix, is_separator
from ragbias.boundaries.spans import split_at

PART_OF_WORD = re.compile(r"^\w+")  # where a common ending begins, a word may be cut
WORD = re.compile(r"\w+")
MAX_AROUND = 200  # characters before the first and after the last document that may hold a header or a footer


def document_groups(text: str, occurrences: Sequence[Occurrence], lenient: bool = False) -> list[list[Occurrence]]:
    """Split occurrences into groups, each in ascending order.

    Two neighbours are of one group if between them there is a bare separator (no letters), or a header or footer that
    repeats: between other neighbours, before the first or after the last document. A border between chat messages
    always separates.

    Args:
        text: the prompt.
        occurrences: in ascending order, not overlapping.
        lenient: keep documents together over any other text as well, if each ends its line or its quotation.
    """
    gaps = [text[left.end : right.begin] for left, right in pairwise(occurrences)]
    wordy = [index for index, gap in enumerate(gaps) if not is_separator(gap)]
    borders = [index + 1 for index in wordy if not _joins(text, occurrences, gaps, index, wordy, lenient)]
    return split_at(occurrences, borders)


def _joins(
    text: str,
    occurrences: Sequence[Occurrence],
    gaps: Sequence[str],
    index: int,
    wordy: Sequence[int],
    lenient: bool,
) -> bool:
    """Whether a gap that holds words joins its neighbours; ``wordy`` are the indices of all such gaps."""
    gap = gaps[index]
    if MESSAGE_BORDER.search(gap):
        return False
    first, last = occurrences[0].begin, occurrences[-1].end
    before, after = text[max(0, first - MAX_AROUND) : first], text[last : last + MAX_AROUND]
    others = [gaps[other] for other in wordy if other != index]
    if any(_same_header(gap, other) for other in [*others, before]):
        return True
    if any(_same_footer(gap, other) for other in [*others, after]):
        return True
    return lenient and ends_block(text, occurrences[index]) and ends_block(text, occurrences[index + 1])


def _same_header(gap: str, other: str) -> bool:
    """Whether both end in the same words, numbers aside, or their last lines begin with the same word."""
    gap, other = NUMBER.sub("0", gap), NUMBER.sub("0", other)
    if LETTER.search(PART_OF_WORD.sub("", common_suffix(gap, other))):
        return True
    ours, theirs = WORD.search(gap.rsplit("\n", 1)[-1]), WORD.search(other.rsplit("\n", 1)[-1])
    return ours is not None and theirs is not None and ours.group() == theirs.group()


def _same_footer(gap: str, other: str) -> bool:
    """Whether both begin with the same words, numbers aside."""
    return bool(WORD.search(common_prefix(NUMBER.sub("0", gap), NUMBER.sub("0", other)).rpartition(" ")[0]))
