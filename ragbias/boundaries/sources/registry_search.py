"""Finding documents that only the registry of recent retrievals knows, so with more care than named ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ragbias.boundaries.matching.assignment import assign
from ragbias.boundaries.matching.occurrences import MIN_CHARACTERS, Occurrence, is_block, occurrences_by_document
from ragbias.boundaries.sources.known_text import fields_of
from ragbias.boundaries.sources.registry import Registry, Retrieval
from ragbias.boundaries.spans import n_characters
from ragbias.boundaries.splitting.context_selection import ContextSelection, select_context

NOTHING = ContextSelection([], [])


def find(text: str, registry: Registry) -> ContextSelection:
    """The documents of the remembered retrieval that explains most of the prompt.

    Texts of other retrievals are added only where they continue the documents with the same separator, as the merged
    results of two retrievers do. A single document is accepted only if it has its lines to itself, so that a text that
    merely occurs in the question is not taken for one. Short texts are accepted only where they are together with
    longer ones of their retrieval.
    """
    likely = occurrences_by_document(text, registry.likely_in(text), strict=True)
    known = {document: found for document, found in likely.items() if len(document.strip()) >= MIN_CHARACTERS}
    if not known:
        return NOTHING
    best = _best_retrieval(text, registry.candidates(), likely, known)
    if best.occurrences:
        return best if best.n_ambiguous or best.has_metadata else _continued(text, best.occurrences, known.values())
    best = _select(text, list(known), known)
    several = len(best.occurrences) > 1
    return best if several or (best.occurrences and is_block(text, best.occurrences[0])) else NOTHING


def _best_retrieval(
    text: str,
    retrievals: Iterable[Retrieval],
    likely: Mapping[str, list[Occurrence]],
    known: Mapping[str, list[Occurrence]],
) -> ContextSelection:
    """The two or more documents of one retrieval that cover most text; of equal ones the latest."""
    longest = {document: max(each.end - each.begin for each in found) for document, found in likely.items()}
    candidates = [
        [document for document in retrieval if document in longest]
        for retrieval in retrievals
        if len(retrieval) > 1 and not known.keys().isdisjoint(retrieval)
    ]
    candidates = [documents for documents in candidates if len(documents) > 1]
    limits = [sum(longest[document] for document in documents) for documents in candidates]
    best = NOTHING
    best_rank = (0, 0)  # characters covered, then the latest
    for index in sorted(range(len(candidates)), key=lambda index: -limits[index]):
        if (limits[index], -index) <= best_rank:
            break  # neither this nor any further one can cover more
        documents = candidates[index]
        found = _select(text, [document for document in documents if document in known], known)
        if not known.keys() >= set(documents):
            whole = _select(text, documents, likely)
            if len(whole.occurrences) > len(found.occurrences) and not whole.n_ambiguous:
                found = whole
        rank = (n_characters(each.span for each in found.occurrences), -index)
        if len(found.occurrences) > 1 and rank > best_rank:
            best, best_rank = found, rank
    return best


def _select(text: str, documents: Sequence[str], known: Mapping[str, list[Occurrence]]) -> ContextSelection:
    return select_context(text, assign(text, documents, known), fields_of(documents))


def _continued(text: str, selected: Sequence[Occurrence], known: Iterable[Sequence[Occurrence]]) -> ContextSelection:
    """The selected documents with all others before and after them that have the same separator."""
    found = list(selected)
    separators = {text[left.end : right.begin] for left, right in pairwise(found)}
    if len(separators) > 1:
        return ContextSelection.of_texts(found)
    (separator,) = separators
    every = sorted(occurrence for occurrences in known for occurrence in occurrences)
    beginning = {each.begin: each for each in every}  # of several at one index the longest
    ending = {each.end: each for each in reversed(every)}
    while (edge := found[-1].end + len(separator)) in beginning and text.startswith(separator, found[-1].end):
        found.append(beginning[edge])
    while (edge := found[0].begin - len(separator)) in ending and text.startswith(separator, edge):
        found.insert(0, ending[edge])
    return ContextSelection.of_texts(found)
