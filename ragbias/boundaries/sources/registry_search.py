"""Finding documents that only the registry of recent retrievals knows, so with more care than named ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ragbias.boundaries.known_text import fields_of
from ragbias.boundaries.matching.assignment import assign
from ragbias.boundaries.matching.occurrences import Occurrence, is_block, occurrences_by_document, occurrences_of
from ragbias.boundaries.sources.registry import Registry
from ragbias.boundaries.splitting.context_selection import ContextSelection, select_context
from ragbias.boundaries.splitting.current_turn import current_turn
from ragbias.boundaries.splitting.outermost import is_long

NOTHING = ContextSelection([], [])
Known = dict[str, list[Occurrence]]


def known_in(text: str, registry: Registry, not_documents: Sequence[str] = ()) -> Known:
    """The remembered texts that occur in the prompt, not within a word, each with its occurrences; the longest first.

    What anyone retrieved is never looked for in ``not_documents``, other texts of the prompt.
    """
    known = occurrences_by_document(text, registry.likely_in(text), strict=True)
    if registry.process_wide:
        excluded = [each for other in not_documents if other.strip() for each in occurrences_of(text, other)]
        known = {
            document: [each for each in found if not any(each.overlaps(other) for other in excluded)]
            for document, found in known.items()
        }
    return {document: found for document, found in known.items() if found}


def find(text: str, registry: Registry, known: Mapping[str, list[Occurrence]]) -> tuple[ContextSelection, str]:
    """The documents of the latest remembered retrieval in the prompt; and, if they cannot be told, why.

    A single document is accepted only if it has its lines to itself, so that a text that merely occurs in the question
    is not taken for one. Short texts are accepted only where they are together with longer ones of their retrieval.

    Args:
        text: the prompt.
        registry: the retrievals.
        known: as ``known_in`` gives it.
    """
    long = {document: found for document, found in known.items() if is_long(document)}
    names = set(long)
    retrievals = [retrieval for retrieval in registry.candidates() if not names.isdisjoint(retrieval)]
    if not retrievals:
        return NOTHING, ""
    found, doubt = _select(text, retrievals, long)
    if any(document in known and document not in long for retrieval in retrievals for document in retrieval):
        whole, unclear = _select(text, retrievals, known)
        if len(whole.occurrences) > len(found.occurrences) and not whole.n_ambiguous and not unclear:
            found, doubt = whole, ""
    alone = len(found.occurrences) == 1 and not is_block(text, found.occurrences[0])
    return NOTHING if alone else found, doubt


def _select(
    text: str, retrievals: Sequence[Sequence[str]], known: Mapping[str, list[Occurrence]]
) -> tuple[ContextSelection, str]:
    here = [[document for document in retrieval if document in known] for retrieval in retrievals]
    turn = current_turn(text, here, known)
    if turn.doubt:
        return ContextSelection([], [], len(known)), turn.doubt
    occurrences = assign(text, turn.documents, turn.known)
    return select_context(text, occurrences, fields_of(turn.documents)), ""
