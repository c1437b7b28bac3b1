"""Which assigned documents form one context, and which are apart: quoted in a question, or in another message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from ragbias.boundaries.matching.occurrences import Occurrence, ends_block
from ragbias.boundaries.patterns import LETTER, MESSAGE_BORDER, NUMBER, is_separator
from ragbias.boundaries.spans import split_at

PART_OF_WORD = re.compile(r"^\w+")  # where a common ending begins, a word may be cut
WORD = re.compile(r"\w+")
FIRST_WORDS = re.compile(r"[^\w]*\w[^ ]* ", re.DOTALL)  # up to a space, after which a word may be cut
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
    joined = _joined(text, occurrences, gaps, lenient)
    return split_at(occurrences, [index for index, joins in enumerate(joined, 1) if not joins])


def _joined(text: str, occurrences: Sequence[Occurrence], gaps: Sequence[str], lenient: bool) -> list[bool]:
    """Whether each gap joins its neighbours."""
    if not occurrences:
        return []
    wordy = [gap for gap in gaps if not is_separator(gap)]
    first, last = occurrences[0].begin, occurrences[-1].end
    before, after = text[max(0, first - MAX_AROUND) : first], text[last : last + MAX_AROUND]
    seen = Counter(sign for gap in wordy for sign in (*_header_signs(gap), *_footer_signs(gap)))
    seen.update((*_header_signs(before), *_footer_signs(after)))
    return [
        is_separator(gap)
        or (
            not MESSAGE_BORDER.search(gap)
            and (
                any(seen[sign] > 1 for sign in (*_header_signs(gap), *_footer_signs(gap)))
                or (lenient and ends_block(text, left) and ends_block(text, right))
            )
        )
        for gap, (left, right) in zip(gaps, pairwise(occurrences), strict=True)
    ]


def _header_signs(gap: str) -> list[tuple[str, str]]:
    """What two gaps have in common that end in the same words, numbers aside, or whose last lines begin with the same
    word: the end from before the last word with a letter, and that word."""
    gap = NUMBER.sub("0", gap)
    words = [word for word in WORD.finditer(gap) if LETTER.search(word.group())]
    begins = WORD.search(gap.rsplit("\n", 1)[-1])
    signs = [("end", gap[words[-1].start() - 1 :])] if words and words[-1].start() else []
    return [*signs, ("line", begins.group())] if begins else signs


def _footer_signs(gap: str) -> list[tuple[str, str]]:
    """What two gaps have in common that begin with the same words, numbers aside: all up to the end of the first."""
    begins = FIRST_WORDS.match(NUMBER.sub("0", gap))
    return [("begin", begins.group())] if begins else []
