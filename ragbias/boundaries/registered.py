"""Documents found by nothing but the memory of recent retrievals, so with more care than named ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ragbias.boundaries.occurrences import Hit, forms, is_block, is_bounded, occurrences
from ragbias.boundaries.placement import place
from ragbias.boundaries.registry import Registry
from ragbias.boundaries.runs import best_run, covered, split_runs

MIN_CHARACTERS = 8  # shorter texts stand in too many prompts by chance
MANY = 100  # texts


def find(text: str, registry: Registry) -> list[Hit]:
    """The documents of the remembered retrieval that explains most of the prompt, in ascending order.

    Texts of other retrievals are added only where they continue the row of documents with the same separator, as the
    merged results of two retrievers do. A single document is accepted only if it has its lines to itself, so that a
    text that merely occurs in the question is not taken for one.
    """
    retrievals = registry.candidates()
    present = _present(text, (document for retrieval in retrievals for document in retrieval))
    together = [[document for document in retrieval if document in present] for retrieval in retrievals]
    runs = [_run(text, documents) for documents in together if len(documents) > 1]
    best = max(runs, key=lambda run: (len(run) > 1, covered(run)), default=[])
    if len(best) > 1:
        return _continued(text, best, present)
    best = _run(text, list(present))
    return best if len(best) > 1 or (best and is_block(text, best[0])) else []


def _present(text: str, documents: Iterable[str]) -> dict[str, None]:
    """Those of the documents that stand in the text in any form, each once, in order."""
    distinct = {document: None for document in documents if len(document.strip()) >= MIN_CHARACTERS}
    if len(distinct) > MANY:  # a full search for each would be slow, so look at their first characters before
        heads = {text[begin : begin + MIN_CHARACTERS] for begin in range(len(text))}
        distinct = {
            document: None
            for document in distinct
            if any(form[:MIN_CHARACTERS] in heads for form in forms(document, text))
        }
    return {document: None for document in distinct if any(form in text for form in forms(document, text))}


def _run(text: str, documents: Sequence[str]) -> list[Hit]:
    return best_run(split_runs(text, place(text, documents, strict=True)))


def _continued(text: str, run: list[Hit], present: Iterable[str]) -> list[Hit]:
    separators = {text[left.end : right.begin] for left, right in pairwise(run)}
    if len(separators) > 1:
        return run
    (separator,) = separators
    hits = [hit for document in present for hit in occurrences(text, document) if is_bounded(text, hit)]
    behind = {hit.begin: hit for hit in sorted(hits)}  # of several at one place the longest
    before = {hit.end: hit for hit in sorted(hits, key=lambda hit: -hit.begin)}
    while (edge := run[-1].end + len(separator)) in behind and text.startswith(separator, run[-1].end):
        run = [*run, behind[edge]]
    while (edge := run[0].begin - len(separator)) in before and text.startswith(separator, edge):
        run = [before[edge], *run]
    return run
