"""Choose an occurrence for each document: contiguous if possible, longest first, never overlapping."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ragbias.boundaries.matching.occurrences import (
    MIN_CHARACTERS,
    READINGS,
    Occurrence,
    ends_block,
    is_alone,
    is_bounded,
    is_cut,
    is_quoted,
    is_tagged,
)
from ragbias.boundaries.patterns import common_prefix, common_suffix, is_separator
from ragbias.boundaries.spans import Margins

MAX_ANCHORS = 8  # occurrences of the longest document to start from
MAX_SEPARATORS = 12  # separators to try at each
MAX_SEPARATOR = 200  # characters
MAX_STEPS = 2000  # of backtracking, where several documents fit at one index
MAX_COMPARISONS = 20_000  # of occurrences with those of documents that occur once
IN_SENTENCE = tuple(" .,;:?!")  # what follows a word there
COMPARED = 24  # characters before and after an occurrence that are compared with those of other occurrences


def assign(text: str, documents: Sequence[str], known: Mapping[str, list[Occurrence]]) -> list[Occurrence]:
    """Give each document an occurrence, as often as it is named; those of as many as possible, in ascending order.

    A sequence with one separator wins, if it holds no fewer documents. Else each document goes to where it occurs, the
    longest first, so that none is found inside another; of several occurrences, the one whose surroundings are most
    like the others' counts.

    All documents are printed in one form: in full, stripped, or escaped. The form that finds most of them counts, of
    equal ones the fullest. If the documents differ in their outer white space, their spans know it, unless each is
    between quotation marks. These are part of their spans where they differ.
    """
    wanted = Counter(documents)
    every = {
        document: _uncut(text, occurrences) if len(document.strip()) < MIN_CHARACTERS else occurrences
        for document, occurrences in known.items()
        if document in wanted
    }
    best: list[Occurrence] = []
    tried: list[Mapping[str, list[Occurrence]]] = []
    readings = sorted({reading for found in every.values() for each in found for reading in each.readings})
    for reading in (*readings, None):  # last of all, each in its own form
        options = {
            document: printed
            for document, found in every.items()
            if (printed := [each for each in found if _is_printed(each, reading)])
        }
        if options and options not in tried:
            tried.append(options)
            best = max(best, _assigned(text, options, wanted), key=len)
        if len(best) == wanted.total():
            break
    return _loosened(text, _doubted(text, best, every))


def _is_printed(occurrence: Occurrence, reading: int | None) -> bool:
    """Whether a document is printed so in this reading, or, without one, whether nobody rewrote it."""
    return reading in occurrence.readings if reading is not None else min(occurrence.readings) < len(READINGS)


def _uncut(text: str, found: Sequence[Occurrence]) -> list[Occurrence]:
    """Those of the occurrences of a short document that are no part of a word or a rule."""
    return [each for each in found if not is_cut(text, each.begin, each.end)]


def _assigned(text: str, options: Mapping[str, list[Occurrence]], wanted: Counter[str]) -> list[Occurrence]:
    contiguous = _ContiguousSearch(text, options, wanted).best()
    if len(contiguous) == sum(min(wanted[document], len(each)) for document, each in options.items()):
        return contiguous
    single = _one_by_one(text, options, wanted)
    return contiguous if len(contiguous) >= len(single) > 0 else single


def _doubted(text: str, assigned: Sequence[Occurrence], every: Mapping[str, list[Occurrence]]) -> Sequence[Occurrence]:
    """The occurrences, of which those of short documents know whether they may be somewhere else as well."""
    short = {each.document for each in assigned if len(each.document.strip()) < MIN_CHARACTERS}
    options = {document: _uncut(text, every[document]) for document in short}
    if (
        not short
        or len(assigned) == 1
        or _are_joined(text, assigned, [each for found in options.values() for each in found])
    ):
        return assigned
    cover = _Cover(text, assigned)

    def is_doubtful(each: Occurrence) -> bool:
        if each.document not in short:
            return False
        found = every[each.document]
        if is_quoted(text, each.begin, each.end):  # maybe an attribute of a tag, and the document is in the tag
            return any(is_tagged(text, other.begin, other.end) and not cover.overlaps(other) for other in found)
        return not is_alone(text, each.begin, each.end) and not all(map(cover.overlaps, found))

    return [replace(each, doubtful=is_doubtful(each)) for each in assigned]


def _are_joined(text: str, assigned: Sequence[Occurrence], short: Sequence[Occurrence]) -> bool:
    """Whether documents are joined by one separator that nothing else can be, and none of the short ones is beside
    them; or, for only two documents, elsewhere but within a sentence."""
    begin, end = assigned[0].begin, assigned[-1].end
    gaps = {text[left.end : right.begin] for left, right in pairwise(assigned)}
    separator = next(iter(gaps), "")
    if len(gaps) != 1 or not separator.strip(" ") or any(separator in each.document.strip() for each in assigned):
        return False
    n_before = len(text[:begin].removesuffix(separator))
    n_after = len(text[end:].removeprefix(separator))
    cover = _Cover(text, assigned)
    rivals = [each for each in short if not cover.overlaps(each)]
    beside = any(each.end == n_before or each.begin == len(text) - n_after for each in rivals)
    if len(assigned) == 2 and (n_before == begin or n_after == len(text) - end):
        beside = beside or not all(
            text[each.begin - 1 : each.begin] == " " and text[each.end : each.end + 1] in IN_SENTENCE for each in rivals
        )
    return not beside and not is_cut(text, begin, end)


def _loosened(text: str, assigned: Sequence[Occurrence]) -> list[Occurrence]:
    """The occurrences, which know on which sides the documents differ in their outer white space; those that differ in
    nothing else are doubtful."""
    documents = {each.document for each in assigned}
    left = len({document[: len(document) - len(document.lstrip())] for document in documents}) > 1
    right = len({document[len(document.rstrip()) :] for document in documents}) > 1
    quoted = all(is_quoted(text, each.begin, each.end) for each in assigned)
    if quoted and len({text[each.end] for each in assigned}) > 1:  # as ``repr`` writes them
        return [replace(each, begin=each.begin - 1, end=each.end + 1) for each in assigned]
    if quoted or not (left or right):
        return list(assigned)
    copies = Counter(document.strip() for document in documents)  # these cannot be told apart
    return [
        replace(each, margins=Margins(left, right), doubtful=each.doubtful or copies[each.document.strip()] > 1)
        for each in assigned
    ]


class _ContiguousSearch:
    """The search for a sequence of documents with the same separator between all of them."""

    def __init__(self, text: str, options: Mapping[str, list[Occurrence]], wanted: Counter[str]) -> None:
        self.text, self.options = text, options
        self.wanted = Counter({document: wanted[document] for document in options})
        self.beginning: dict[int, list[Occurrence]] = defaultdict(list)
        self.ending: dict[int, list[Occurrence]] = defaultdict(list)
        for each in sorted((each for found in options.values() for each in found), key=lambda o: o.begin - o.end):
            self.beginning[each.begin].append(each)  # the longest first
            self.ending[each.end].append(each)
        self.steps = MAX_STEPS

    def best(self) -> list[Occurrence]:
        """The longest sequence; of equal ones the most regular, then the last, which is nearest to the question."""
        longest = next(iter(self.options))
        anchors = sorted(self.options[longest], key=lambda each: (each.end - each.begin, each.begin), reverse=True)
        best: list[Occurrence] = []
        best_rank = (0, 0, False, False, False)
        for anchor in anchors[:MAX_ANCHORS]:
            for separator in self._separators(anchor):
                for step in (1, -1):
                    found = self._sequence(anchor, separator, step)
                    bounded = sum(is_bounded(self.text, each.begin, each.end) for each in found)
                    quoted = all(is_quoted(self.text, each.begin, each.end) for each in found)
                    rank = (len(found), bounded, quoted, is_separator(separator), ends_block(self.text, found[-1]))
                    if rank > best_rank:
                        best, best_rank = found, rank
                if best_rank[:2] == (self.wanted.total(), self.wanted.total()) and all(best_rank[3:]):
                    return best
        return best

    def _separators(self, anchor: Occurrence) -> list[str]:
        gaps = {""}
        for occurrences in self.options.values():
            for each in occurrences:
                if anchor.end <= each.begin <= anchor.end + MAX_SEPARATOR:
                    gaps.add(self.text[anchor.end : each.begin])
                elif each.end <= anchor.begin <= each.end + MAX_SEPARATOR:
                    gaps.add(self.text[each.end : anchor.begin])
        return sorted(gaps, key=lambda gap: (gap == "", len(gap), gap))[:MAX_SEPARATORS]

    def _sequence(self, anchor: Occurrence, separator: str, step: int) -> list[Occurrence]:
        """The sequence around an occurrence, extended after it first (``step`` 1) or before it first (-1)."""
        left = self.wanted.copy()
        left[anchor.document] -= 1
        first = self._extend(anchor, separator, left, step)
        left.subtract(each.document for each in first)
        second = self._extend(anchor, separator, left, -step)
        return sorted([anchor, *first, *second])

    def _extend(self, start: Occurrence, separator: str, left: Counter[str], step: int) -> list[Occurrence]:
        """The longest sequence after (``step`` 1) or before (-1) ``start``, from the documents that are left."""
        found: list[Occurrence] = []
        left = left.copy()
        while True:
            neighbours = self._neighbours(found[-1] if found else start, separator, left, step)
            if len(neighbours) != 1:
                break
            found.append(neighbours[0])
            left[neighbours[0].document] -= 1
        best: list[Occurrence] = []
        for neighbour in neighbours:
            self.steps -= 1
            if self.steps < 0:
                break
            rest = left.copy()
            rest[neighbour.document] -= 1
            tail = [neighbour, *self._extend(neighbour, separator, rest, step)]
            if len(tail) > len(best):
                best = tail
            if len(best) == left.total():
                break
        return found + best

    def _neighbours(self, start: Occurrence, separator: str, left: Counter[str], step: int) -> list[Occurrence]:
        edge = start.end + len(separator) if step > 0 else start.begin - len(separator)
        if edge < 0 or not self.text.startswith(separator, start.end if step > 0 else edge):
            return []
        neighbours = self.beginning[edge] if step > 0 else self.ending[edge]
        return [neighbour for neighbour in neighbours if left[neighbour.document] > 0]


def _one_by_one(text: str, options: Mapping[str, list[Occurrence]], wanted: Counter[str]) -> list[Occurrence]:
    """Each document where it occurs outside of longer ones, whatever is between them."""
    assigned: list[Occurrence] = []
    longer, taken = _Cover(text), _Cover(text)
    several: dict[str, list[Occurrence]] = {}
    for document, found in options.items():  # the longest first
        outer = found
        if len({each.end - each.begin for each in found}) > 1:
            outer = [each for each in found if not any(other != each and other.contains(each) for other in found)]
        free = [each for each in outer if not longer.overlaps(each)]
        free = [each for each in free if is_bounded(text, each.begin, each.end)] or free
        longer.add(free)
        if len(free) <= wanted[document]:
            _take(assigned, taken, free, len(free))
        else:
            several[document] = free
    for document, free in several.items():
        last = free[-max(MAX_COMPARISONS // len(several), wanted[document]) :]
        others = MAX_COMPARISONS // (len(several) * len(last)) + 1
        for _ in range(wanted[document]):
            last.sort(key=lambda each: _likeness(text, each, assigned[:others]), reverse=True)
            _take(assigned, taken, last, 1)
    return sorted(assigned)


class _Cover:
    """The characters of a prompt that occurrences cover."""

    def __init__(self, text: str, occurrences: Iterable[Occurrence] = ()) -> None:
        self._covered = bytearray(len(text))
        self.add(occurrences)

    def add(self, occurrences: Iterable[Occurrence]) -> None:
        """Cover these as well."""
        for each in occurrences:
            self._covered[each.begin : each.end] = b"\1" * (each.end - each.begin)

    def overlaps(self, occurrence: Occurrence) -> bool:
        """Whether any of its characters is covered."""
        return self._covered.find(1, occurrence.begin, occurrence.end) >= 0


def _take(assigned: list[Occurrence], taken: _Cover, options: Sequence[Occurrence], count: int) -> None:
    """Assign up to ``count`` of the options, as far as they do not overlap what is assigned already."""
    for option in options:
        if count > 0 and not taken.overlaps(option):
            assigned.append(option)
            taken.add([option])
            count -= 1


def _likeness(text: str, option: Occurrence, assigned: Sequence[Occurrence]) -> tuple[int, int, int]:
    """How much the text around it is like that around the documents assigned already, then how near it is to them."""
    if not assigned:
        return (0, 0, option.begin)
    before, after = text[max(0, option.begin - COMPARED) : option.begin], text[option.end : option.end + COMPARED]
    alike = max(
        len(common_suffix(before, text[max(0, other.begin - COMPARED) : other.begin]))
        + len(common_prefix(after, text[other.end : other.end + COMPARED]))
        for other in assigned
    )
    distance = min(max(other.begin - option.end, option.begin - other.end) for other in assigned)
    return (alike, -distance, option.begin)
