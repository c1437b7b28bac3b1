"""Documents found by nothing but the memory of recent retrievals, so with more care than named ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ragbias.boundaries.matching.assignment import place, places
from ragbias.boundaries.matching.occurrences import Hit, is_block, span_of
from ragbias.boundaries.sources.known_text import fields_of
from ragbias.boundaries.sources.registry import Registry, Retrieval
from ragbias.boundaries.spans import covered
from ragbias.boundaries.splitting.context_selection import MIN_CHARACTERS, Standing, bare, standing

NONE = Standing([], [])


def find(text: str, registry: Registry) -> Standing:
    """The documents of the remembered retrieval that explains most of the prompt.

    Texts of other retrievals are added only where they continue the row of documents with the same separator, as the
    merged results of two retrievers do. A single document is accepted only if it has its lines to itself, so that a
    text that merely occurs in the question is not taken for one. Short texts are accepted only where they stand
    together with longer ones of their retrieval.
    """
    likely = places(text, registry.likely_in(text), strict=True)
    known = {document: hits for document, hits in likely.items() if len(document.strip()) >= MIN_CHARACTERS}
    if not known:
        return NONE
    best = _best(text, registry.candidates(), likely, known)
    if best.hits:
        return best if best.rest or best.in_blocks else bare(_continued(text, best.hits, known.values()))
    best = _run(text, list(known), known)
    return best if len(best.hits) > 1 or (best.hits and is_block(text, best.hits[0])) else NONE


def _best(
    text: str, retrievals: Iterable[Retrieval], likely: dict[str, list[Hit]], known: dict[str, list[Hit]]
) -> Standing:
    """The two or more documents of one retrieval that cover most text; of equal ones the latest."""
    longest = {document: max(hit.end - hit.begin for hit in hits) for document, hits in likely.items()}
    found = known.keys()
    together = [
        [document for document in retrieval if document in longest]
        for retrieval in retrievals
        if len(retrieval) > 1 and not found.isdisjoint(retrieval)
    ]
    best = NONE
    best_rank = (0, 0)  # characters covered, then the latest
    most = [sum(longest[document] for document in documents) for documents in together]
    for index in sorted(range(len(together)), key=lambda index: -most[index]):
        if (most[index], -index) <= best_rank or len(together[index]) < 2:
            continue  # cannot cover more
        run = _run(text, [document for document in together[index] if document in known], known)
        if not found >= set(together[index]):
            whole = _run(text, together[index], likely)
            run = whole if len(whole.hits) > len(run.hits) and not whole.rest else run
        rank = (covered(map(span_of, run.hits)), -index)
        if len(run.hits) > 1 and rank > best_rank:
            best, best_rank = run, rank
    return best


def _run(text: str, documents: Sequence[str], known: dict[str, list[Hit]]) -> Standing:
    return standing(text, place(text, documents, known), fields_of(documents))


def _continued(text: str, run: list[Hit], known: Iterable[Sequence[Hit]]) -> list[Hit]:
    separators = {text[left.end : right.begin] for left, right in pairwise(run)}
    if len(separators) > 1:
        return run
    (separator,) = separators
    hits = [hit for each in known for hit in each]
    behind = {hit.begin: hit for hit in sorted(hits)}  # of several at one place the longest
    before = {hit.end: hit for hit in sorted(hits, key=lambda hit: -hit.begin)}
    while (edge := run[-1].end + len(separator)) in behind and text.startswith(separator, run[-1].end):
        run = [*run, behind[edge]]
    while (edge := run[0].begin - len(separator)) in before and text.startswith(separator, edge):
        run = [before[edge], *run]
    return run
