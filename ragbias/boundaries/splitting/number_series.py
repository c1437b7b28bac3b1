"""Which candidates, one beside each document, number the documents together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise

from ragbias.boundaries.spans import Span
from ragbias.boundaries.splitting.number_candidates import Candidate, candidates_in
from ragbias.boundaries.splitting.number_cuts import TOTAL

SMALL = 100  # two numbers below it may count with any step
Series = list[Candidate]  # one beside each document


@dataclass
class Regions:
    """Regions of a prompt, one for each document, in which the documents' numbers may be.

    Attributes:
        edge: index of the region that goes on beyond what belongs to a document: the first one before all, or the last
            one after all.
        groups: the candidates by region, by what those that count together have in common, the exact keys first.
    """

    text: str
    spans: Sequence[Span]
    edge: int | None = None
    groups: list[dict[tuple[str, ...], dict[int, list[Candidate]]]] = field(init=False)

    def __post_init__(self) -> None:
        self.groups = [{}, {}]
        for index, span in enumerate(self.spans):
            for candidate in candidates_in(self.text, span):
                keys = candidate.keys()
                self._add(keys, index, candidate)
                opening = candidate._replace(line=re.split(r"[\s>:\[({]", candidate.line)[-1])
                if index == self.edge == 0 and opening.keys() != keys and not opening.line[-1:].isalnum():
                    self._add(opening.keys(), index, candidate)  # as in ``Context: 1. ...``, where others begin a line

    def _add(self, keys: Sequence[tuple[str, ...]], index: int, candidate: Candidate) -> None:
        for group, key in zip(self.groups, keys, strict=True):
            group.setdefault(key, {}).setdefault(index, []).append(candidate)

    def filled(
        self, group: Mapping[tuple[str, ...], Mapping[int, list[Candidate]]]
    ) -> Iterator[tuple[tuple[str, ...], list[list[Candidate]]]]:
        """The candidates of each region, where all regions but one have some: others number nothing."""
        for key, found in group.items():
            if len(found) >= len(self.spans) - 1:
                yield key, [found.get(index, []) for index in range(len(self.spans))]

    def without_edge(self, series: Sequence[Candidate]) -> Series:
        return [candidate for index, candidate in enumerate(series) if index != self.edge]

    def certain(self, taken: AbstractSet[Span]) -> Iterator[Series]:
        """What surely numbers the documents: decided by the set of values, so in the same way in every order."""
        for exact, group in zip((True, False), self.groups, strict=True):
            for _, by_region in self.filled(group):
                for series in self._aligned(by_region):
                    if taken.isdisjoint(candidate.span for candidate in series) and self._is_certain(series, exact):
                        yield series

    def _aligned(self, by_region: Sequence[Sequence[Candidate]]) -> Iterator[Series]:
        """The candidates of all regions in the order in which they are there, if all have equally many."""
        inner = {len(each) for index, each in enumerate(by_region) if index != self.edge}
        count = inner.pop()
        if inner or any(len(each) < count for each in by_region):
            return
        equal = [each[:count] if index else each[len(each) - count :] for index, each in enumerate(by_region)]
        yield from map(list, zip(*equal, strict=True))

    def _is_certain(self, series: Series, exact: bool) -> bool:
        values = sorted(candidate.value for candidate in series)
        steps = {right - left for left, right in pairwise(values)}
        from_first, kind = steps == {1} and values[0] in (0, 1), series[0].counter.kind
        if len(steps) > 1 or 0 in steps or (len(values) == 2 and not (_may_count(*values) if exact else from_first)):
            return False
        inner = self.without_edge(series)
        totals = {total[1] if (total := TOTAL.match(candidate.after)) else "" for candidate in inner}
        if len(totals) > 1:
            return False
        if all(candidate.is_labelled for candidate in inner):
            return from_first or kind == "figure"
        whole = not any(candidate.is_glued or candidate.is_compound for candidate in inner)
        return from_first and whole and kind in ("figure", "word")

    def by_position(self, taken: Collection[Span]) -> Iterator[Series]:
        """Whatever counts with the position, up or down."""
        for exact, group in zip((True, False), self.groups, strict=True):
            for _, by_region in self.filled(group):
                left = _without(taken, by_region)
                if len(left) > 2:
                    yield from _progressions(left)
                elif all(left):
                    yield from ([a, b] for a in left[0] for b in left[1] if _are_counted(a, b, exact))


class Beginnings(Regions):
    """The first lines of the texts, which are the documents' own as a rule."""

    def by_position(self, taken: Collection[Span]) -> Iterator[Series]:
        for series in super().by_position(taken):
            ends = all(re.match(r"[:.)\]}>\"'/|\n](?!\w)|\Z", candidate.after) for candidate in series)  # not ``a.txt``
            few = len(series) == 2 and {candidate.value for candidate in series} not in ({0, 1}, {1, 2})
            if ends and not few and len({candidate.line for candidate in series}) == 1:
                yield series


def counts_between(before: Regions, after: Regions, taken: Collection[Span]) -> bool:
    """Whether what stands only between the documents, neither before the first nor after the last one, counts."""
    for exact, group, group_after in zip((True, False), before.groups, after.groups, strict=True):
        for key, by_region in before.filled(group):
            inner = _without(taken, by_region[1:])
            if len(inner) < 2 or not all(inner) or by_region[0] or len(after.spans) - 1 in group_after.get(key, ()):
                continue
            if len(inner) > 2 and any(True for _ in _progressions(inner)):
                return True
            if len(inner) == 2 and any(_are_counted(a, b, exact) for a in inner[0] for b in inner[1]):
                return True
    return False


def _without(taken: Collection[Span], by_region: Sequence[Sequence[Candidate]]) -> list[list[Candidate]]:
    return [[candidate for candidate in each if candidate.span not in taken] for each in by_region]


def _may_count(low: int, high: int) -> bool:
    """Whether two numbers are likely to count: any two are in arithmetic progression."""
    return high - low == 1 or low in (-1, 0, 1) or high == 2 * low


def _are_counted(left: Candidate, right: Candidate, exact: bool) -> bool:
    """Whether two candidates number two documents, ``exact``: with the same word before them."""
    low, high = sorted((left.value, right.value))
    if low == high or any(candidate.is_compound or (candidate.is_glued and not exact) for candidate in (left, right)):
        return False
    if left.counter.kind != "figure":
        return (low, high) == (1, 2)
    alike = exact or (left.is_labelled and right.is_labelled)
    return _may_count(low, high) or (alike and -SMALL < low < high < SMALL)


def _progressions(by_region: Sequence[Sequence[Candidate]]) -> Iterator[Series]:
    """Choices of one candidate in each region, whose values have one step, up or down."""
    by_value = [{candidate.value: candidate for candidate in each} for each in by_region]
    if not all(by_value):
        return
    for first in by_value[0]:
        for second in by_value[1]:
            step = second - first
            if step and all(first + index * step in values for index, values in enumerate(by_value)):
                yield [values[first + index * step] for index, values in enumerate(by_value)]
