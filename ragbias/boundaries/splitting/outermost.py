"""Which occurrences of documents are not inside those of longer ones, nor in the prompt by chance."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence

from ragbias.boundaries.matching.occurrences import MIN_CHARACTERS, Occurrence, is_bounded
from ragbias.boundaries.patterns import is_separator
from ragbias.boundaries.spans import Span


def outermost(text: str, known: Mapping[str, list[Occurrence]]) -> list[Occurrence]:
    """The occurrences that are in no longer one, in ascending order.

    Those of short texts count only next to others, with nothing but a separator between; or if there are no others.

    Args:
        text: the prompt.
        known: occurrences by document.
    """
    long = {document: found for document, found in known.items() if is_long(document)}
    short = {document: found for document, found in known.items() if document not in long} if long else {}
    taken = _apart(text, [], long or known)
    near = _apart(text, taken, short)
    for each in (*near, *reversed(near)):  # from both sides, as short ones may be next to each other
        index = bisect(taken, each)
        if index and taken[index - 1] == each:
            continue
        before = taken[index - 1].end if index else -1
        after = taken[index].begin if index < len(taken) else -1
        if (before >= 0 and is_separator(text[before : each.begin])) or (
            after >= 0 and is_separator(text[each.end : after])
        ):
            taken.insert(index, each)
    return taken


def n_outside(text: str, known: Mapping[str, list[Occurrence]], spans: Sequence[Span]) -> int:
    """The number of times that documents are in the prompt outside of all spans; short ones may be there by chance."""
    found = outermost(text, {document: found for document, found in known.items() if is_long(document)})
    return sum(not each.is_in(spans) for each in found)


def is_long(document: str) -> bool:
    """Whether a text is long enough not to be in a prompt by chance."""
    return len(document.strip()) >= MIN_CHARACTERS


def _apart(text: str, taken: Sequence[Occurrence], known: Mapping[str, list[Occurrence]]) -> list[Occurrence]:
    """The known occurrences that overlap neither a longer one nor what is taken, in ascending order."""
    apart = list(taken)
    every = (each for found in known.values() for each in _bounded(text, found))
    for each in sorted(every, key=lambda each: (each.begin - each.end, each)):
        index = bisect(apart, each)
        if not any(each.overlaps(other) for other in apart[max(0, index - 1) : index + 1]):
            apart.insert(index, each)
    given = set(taken)
    return [each for each in apart if each not in given]


def _bounded(text: str, found: Sequence[Occurrence]) -> Sequence[Occurrence]:
    return [each for each in found if is_bounded(text, each.begin, each.end)] or found
