"""Documents that are truncated where the context begins or ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ragbias.boundaries.matching.occurrences import Occurrence, escaped_forms
from ragbias.boundaries.patterns import common_prefix, common_suffix, is_separator

COVERAGE = 0.5  # at least this part of the document must be in the prompt
TRACE = 16  # characters
MIN_PRESENT = 40  # and at least so many characters of it


def truncated_at_edges(text: str, whole: Sequence[Occurrence], missing: Sequence[str]) -> list[Occurrence]:
    """The missing documents that occur truncated right after or right before the whole ones, at most one at each edge.

    After the last whole document comes the beginning of a truncated one, before the first whole document the end of
    one: at least half of the document and 40 characters, separated as the whole documents are.
    """
    if not whole:
        return []
    separators = {text[left.end : right.begin] for left, right in pairwise(whole)}
    found: list[Occurrence] = []
    for truncated, edge in ((_beginning_after, whole[-1].end), (_end_before, whole[0].begin)):
        for document in missing:
            occurrence = truncated(text, edge, document, separators)
            if occurrence and all(occurrence.document != other.document for other in found):
                found.append(occurrence)
                break
    return found


def leaves_a_trace(text: str, document: str) -> bool:
    """Whether any ``TRACE`` characters of a document are in the prompt, however it was rewritten or cut."""
    return any(document[begin : begin + TRACE] in text for begin in range(0, max(1, len(document) - TRACE), TRACE))


def _beginning_after(text: str, edge: int, document: str, separators: set[str]) -> Occurrence | None:
    for form in _forms(document, text):
        begin = text.find(form[: _needed(form)], edge)
        if begin >= 0 and _separates(text[edge:begin], separators):
            length = len(common_prefix(form, text[begin : begin + len(form)]).rstrip())
            return Occurrence(begin, begin + length, document)
    return None


def _end_before(text: str, edge: int, document: str, separators: set[str]) -> Occurrence | None:
    for form in _forms(document, text):
        tail = form[len(form) - _needed(form) :]
        end = text.rfind(tail, 0, edge) + len(tail)
        if end >= len(tail) and _separates(text[end:edge], separators):
            length = len(common_suffix(form, text[max(0, end - len(form)) : end]).lstrip())
            return Occurrence(end - length, end, document)
    return None


def _forms(document: str, text: str) -> list[str]:
    """All forms in which the document could occur in ``text``, the most faithful first."""
    stripped = document.strip()
    return [stripped, *(escaped_forms(stripped) if "\\" in text else [])] if stripped else []


def _needed(form: str) -> int:
    return max(MIN_PRESENT, math.ceil(COVERAGE * len(form)))


def _separates(gap: str, separators: set[str]) -> bool:
    return gap in separators if separators else is_separator(gap)
