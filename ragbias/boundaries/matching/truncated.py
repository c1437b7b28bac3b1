"""A document that was cut where the context ends or begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ragbias.boundaries.matching.occurrences import Hit, common_prefix, common_suffix, forms, is_separator

COVERAGE = 0.5  # at least this part of the document must stand in the prompt
MIN_CHARACTERS = 40


def at_edges(text: str, run: Sequence[Hit], missing: Sequence[str]) -> list[Hit]:
    """The missing documents that stand cut off right behind or right before a run, one at most at each edge.

    Behind the run stands the document's beginning, before it the document's end, at least half of the document and 40
    characters, after the run's own separator.

    Args:
        text: the prompt.
        run: documents that stand in full, in ascending order; without any there is no edge.
        missing: documents that do not.
    """
    if not run:
        return []
    gaps = {text[left.end : right.begin] for left, right in pairwise(run)}
    found: list[Hit] = []
    for document in missing:
        hit = _behind(text, run[-1].end, document, gaps)
        if hit:
            found.append(hit)
            break
    for document in missing:
        hit = _before(text, run[0].begin, document, gaps)
        if hit and not any(hit.document == other.document for other in found):
            found.append(hit)
            break
    return found


def _behind(text: str, edge: int, document: str, gaps: set[str]) -> Hit | None:
    for form in forms(document.strip(), text):
        begin = text.find(form[: _needed(form)], edge)
        if begin >= 0 and _fits(text[edge:begin], gaps):
            length = len(common_prefix(form, text[begin : begin + len(form)]).rstrip())
            return Hit(begin, begin + length, document)
    return None


def _before(text: str, edge: int, document: str, gaps: set[str]) -> Hit | None:
    for form in forms(document.strip(), text):
        tail = form[len(form) - _needed(form) :]
        end = text.rfind(tail, 0, edge) + len(tail)
        if end >= len(tail) and _fits(text[end:edge], gaps):
            window = text[max(0, end - len(form)) : end]
            length = len(common_suffix(form, window).lstrip())
            return Hit(end - length, end, document)
    return None


def _needed(form: str) -> int:
    return max(MIN_CHARACTERS, math.ceil(COVERAGE * len(form)))


def _fits(gap: str, gaps: set[str]) -> bool:
    return gap in gaps if gaps else is_separator(gap)
