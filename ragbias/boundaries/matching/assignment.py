"""Which occurrence of which document is the retrieved one: never overlapping, longest first, contiguous if possible."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ragbias.boundaries.matching.occurrences import (
    Hit,
    common_prefix,
    common_suffix,
    ends_block,
    is_bounded,
    is_separator,
    occurrences,
)

MAX_ANCHORS = 8  # occurrences of the longest document to start from
MAX_SEPARATORS = 12  # separators to try at each
MAX_SEPARATOR = 200  # characters
MAX_STEPS = 2000  # of backtracking, where several documents fit in one place
CONTEXT = 24  # characters before and after a hit that are compared with those of other hits


def places(text: str, documents: Iterable[str], strict: bool = False) -> dict[str, list[Hit]]:
    """Where each document stands, the longest document first; those that stand nowhere are left out.

    Args:
        strict: take only occurrences that neither begin nor end within a word.
    """
    options = {document: occurrences(text, document) for document in sorted(set(documents), key=lambda d: (-len(d), d))}
    if strict:
        options = {
            document: [hit for hit in hits if is_bounded(text, hit.begin, hit.end)]
            for document, hits in options.items()
        }
    return {document: hits for document, hits in options.items() if hits}


def place(text: str, documents: Sequence[str], known: dict[str, list[Hit]]) -> list[Hit]:
    """Place as many of the documents as stand in the text, each as often as it is named, in ascending order.

    Retrieved documents are mostly joined by one separator, so an arrangement of that kind comes first, if it places no
    fewer of them. Else every document goes where it stands, the longest first, so that a document that is part of
    another one is not found inside it; where it stands in several places, to the one that looks most like the others'.

    Args:
        text: the prompt.
        documents: texts; one that was retrieved twice is named twice.
        known: the places of these documents, and maybe of others, as ``places`` gives them.
    """
    wanted = Counter(documents)
    options = {document: hits for document, hits in known.items() if document in wanted}
    if not options:
        return []
    joined = _Joined(text, options, wanted).best()
    if len(joined) == sum(min(wanted[document], len(hits)) for document, hits in options.items()):
        return joined
    single = _one_by_one(text, options, wanted)
    return joined if len(joined) >= len(single) > 0 else single


class _Joined:
    """The search for documents that stand in a row, with the same separator between all of them."""

    def __init__(self, text: str, options: dict[str, list[Hit]], wanted: Counter[str]) -> None:
        self.text, self.options = text, options
        self.wanted = Counter({document: wanted[document] for document in options})
        self.beginning: dict[int, list[Hit]] = defaultdict(list)
        self.ending: dict[int, list[Hit]] = defaultdict(list)
        for hit in sorted((hit for hits in options.values() for hit in hits), key=lambda hit: hit.begin - hit.end):
            self.beginning[hit.begin].append(hit)  # the longest first
            self.ending[hit.end].append(hit)
        self.steps = MAX_STEPS

    def best(self) -> list[Hit]:
        """The longest row; of equally long ones the most regular, then the last, which is nearest to the question."""
        longest = next(iter(self.options))
        anchors = sorted(self.options[longest], key=lambda hit: (hit.end - hit.begin, hit.begin), reverse=True)
        best: list[Hit] = []
        best_rank = (0, 0, False, False)
        for anchor in anchors[:MAX_ANCHORS]:
            for separator in self._separators(anchor):
                for step in (1, -1):
                    row = self._row(anchor, separator, step)
                    bounded = sum(is_bounded(self.text, hit.begin, hit.end) for hit in row)
                    rank = (len(row), bounded, is_separator(separator), ends_block(self.text, row[-1]))
                    if rank > best_rank:
                        best, best_rank = row, rank
                if best_rank == (self.wanted.total(), self.wanted.total(), True, True):
                    return best
        return best

    def _separators(self, anchor: Hit) -> list[str]:
        gaps = {""}
        for hits in self.options.values():
            for hit in hits:
                if anchor.end <= hit.begin <= anchor.end + MAX_SEPARATOR:
                    gaps.add(self.text[anchor.end : hit.begin])
                elif hit.end <= anchor.begin <= hit.end + MAX_SEPARATOR:
                    gaps.add(self.text[hit.end : anchor.begin])
        return sorted(gaps, key=lambda gap: (gap == "", len(gap), gap))[:MAX_SEPARATORS]

    def _row(self, anchor: Hit, separator: str, step: int) -> list[Hit]:
        """The row around a hit, extended behind it first (``step`` 1) or before it first (-1)."""
        left = self.wanted - Counter([anchor.document])
        first = self._extend(anchor, separator, left, step)
        second = self._extend(anchor, separator, left - Counter(hit.document for hit in first), -step)
        return sorted([anchor, *first, *second])

    def _extend(self, hit: Hit, separator: str, left: Counter[str], step: int) -> list[Hit]:
        """The longest row behind (``step`` 1) or before (-1) a hit, from the documents that are left."""
        row: list[Hit] = []
        left = left.copy()
        while True:
            neighbours = self._neighbours(row[-1] if row else hit, separator, left, step)
            if len(neighbours) != 1:
                break
            row.append(neighbours[0])
            left[neighbours[0].document] -= 1
        best: list[Hit] = []
        for neighbour in neighbours:
            self.steps -= 1
            if self.steps < 0:
                break
            rest = left - Counter([neighbour.document])
            tail = [neighbour, *self._extend(neighbour, separator, rest, step)]
            if len(tail) > len(best):
                best = tail
            if len(best) == left.total():
                break
        return row + best

    def _neighbours(self, hit: Hit, separator: str, left: Counter[str], step: int) -> list[Hit]:
        edge = hit.end + len(separator) if step > 0 else hit.begin - len(separator)
        if edge < 0 or not self.text.startswith(separator, hit.end if step > 0 else edge):
            return []
        neighbours = self.beginning[edge] if step > 0 else self.ending[edge]
        return [neighbour for neighbour in neighbours if left[neighbour.document] > 0]


def _one_by_one(text: str, options: dict[str, list[Hit]], wanted: Counter[str]) -> list[Hit]:
    placed: list[Hit] = []
    longer: list[Hit] = []
    several: dict[str, list[Hit]] = {}
    for document, hits in options.items():  # the longest first
        whole = [hit for hit in hits if not any(o.begin <= hit.begin <= hit.end <= o.end and o != hit for o in hits)]
        free = [hit for hit in whole if not any(hit.overlaps(other) for other in longer)]
        free = [hit for hit in free if is_bounded(text, hit.begin, hit.end)] or free
        longer.extend(free)
        if len(free) <= wanted[document]:
            _take(placed, free, len(free))
        else:
            several[document] = free
    for document, hits in several.items():
        for _ in range(wanted[document]):
            hits.sort(key=lambda hit: _likeness(text, hit, placed), reverse=True)
            _take(placed, hits, 1)
    return sorted(placed)


def _take(placed: list[Hit], hits: Sequence[Hit], count: int) -> None:
    """Move up to ``count`` of the hits that are still free to ``placed``."""
    for hit in hits:
        if count > 0 and not any(hit.overlaps(other) for other in placed):
            placed.append(hit)
            count -= 1


def _likeness(text: str, hit: Hit, placed: Sequence[Hit]) -> tuple[int, int, int]:
    """How much the surroundings are those of the documents already placed, then how near it stands to them."""
    if not placed:
        return (0, 0, hit.begin)
    before, after = text[max(0, hit.begin - CONTEXT) : hit.begin], text[hit.end : hit.end + CONTEXT]
    alike = max(
        len(common_suffix(before, text[max(0, other.begin - CONTEXT) : other.begin]))
        + len(common_prefix(after, text[other.end : other.end + CONTEXT]))
        for other in placed
    )
    distance = min(max(other.begin - hit.end, hit.begin - other.end) for other in placed)
    return (alike, -distance, hit.begin)
