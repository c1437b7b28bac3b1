"""Finding documents that only the registry of recent retrievals knows, so with more care than named ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class RegistrySearch(NamedTuple):
    """What of the remembered retrievals is this prompt's context.

    Attributes:
        context: the documents of the latest one in the prompt.
        n_apart: number of documents of the same retrieval that are in the prompt, but not among these.
        doubt: if they cannot be told, why.
    """

    context: ContextSelection
    n_apart: int = 0
    doubt: str = ""


def find(text: str, registry: Registry, known: Mapping[str, list[Occurrence]]) -> RegistrySearch:
    """The documents of the latest remembered retrieval in the prompt.

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
        return RegistrySearch(NOTHING)
    found, expected, doubt = _select(text, retrievals, long)
    if any(document in known and document not in long for retrieval in retrievals for document in retrieval):
        whole, named, unclear = _select(text, retrievals, known)
        if len(whole.occurrences) > len(found.occurrences) and not whole.n_ambiguous and not unclear:
            found, expected, doubt = whole, named, ""
    if len(found.occurrences) == 1 and not is_block(text, found.occurrences[0]):
        return RegistrySearch(NOTHING)
    return RegistrySearch(found, _n_apart(text, found, expected, retrievals, known), doubt)


def _select(
    text: str, retrievals: Sequence[Sequence[str]], known: Mapping[str, list[Occurrence]]
) -> tuple[ContextSelection, Sequence[str], str]:
    """The context, the documents that were looked for, and why they cannot be told, if so."""
    here = [[document for document in retrieval if document in known] for retrieval in retrievals]
    turn = current_turn(text, here, known)
    if turn.doubt:
        return ContextSelection([], [], len(known)), (), turn.doubt
    occurrences = assign(text, turn.documents, turn.known)
    return select_context(text, occurrences, fields_of(turn.documents)), turn.documents, ""


def _n_apart(
    text: str,
    context: ContextSelection,
    expected: Sequence[str],
    retrievals: Sequence[Sequence[str]],
    known: Mapping[str, list[Occurrence]],
) -> int:
    """Number of documents of the same retrieval that are in the prompt, but in no span of the context: short ones too,
    and long ones that are part of a word there. The order decides which these are, so they are not passed over.
    """
    found = Counter(each.document for each in context.occurrences)
    latest = Counter(next((each for each in retrievals if not found.keys().isdisjoint(each)), ()))
    count = 0
    for document, missing in ((Counter(expected) | latest) - found).items():
        occurrences = known.get(document) or (occurrences_of(text, document) if is_long(document) else [])
        outside = [each for each in occurrences if not any(b <= each.begin and each.end <= e for b, e in context.spans)]
        count += min(missing, len(outside))
    return count
