"""Which occurrences of documents are this turn's context, and which are of earlier turns, or quoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ragbias.boundaries.matching.occurrences import Occurrence
from ragbias.boundaries.splitting.messages import messages
from ragbias.boundaries.splitting.outermost import outermost
from ragbias.boundaries.splitting.turns import Turn, merged

UNCLEAR = (
    "documents are in the prompt several times, and which of them are this turn's context cannot be told; put a line "
    "such as 'Context:' before it, or name a segmenter"
)


@dataclass(frozen=True)
class CurrentTurn:
    """What to look for, and where.

    Attributes:
        documents: those of the latest retrieval in the prompt, and of all that continue its context; as often named as
            they were retrieved, or occur there.
        known: by document, its occurrences in this turn, without quotes.
        doubt: in plain words, why these are not known; else empty.
    """

    documents: Sequence[str]
    known: Mapping[str, list[Occurrence]]
    doubt: str = ""


def current_turn(text: str, retrievals: Sequence[Sequence[str]], known: Mapping[str, list[Occurrence]]) -> CurrentTurn:
    """Tell this turn's context from what earlier turns retrieved, and from quotes.

    The latest retrieval counts that has a document in the prompt, where its documents occur last. Retrievals whose
    documents are in the same block belong to it. An assistant's message is never context if there is another.

    Args:
        text: the prompt.
        retrievals: texts, the latest retrieval first.
        known: the occurrences of all these texts, as ``occurrences_by_document`` gives them.
    """
    occurrences = outermost(text, known)
    if not occurrences:
        return CurrentTurn(merged(retrievals), known)
    found, parts = {each.document for each in occurrences}, messages(text, occurrences)
    latest = next(retrieval for retrieval in retrievals if not found.isdisjoint(retrieval))
    if len(parts) == 1 and len(found) == len(occurrences) and found <= set(latest):
        return CurrentTurn(latest, known)  # as nearly always; there is nothing to choose from
    turns = [Turn(text, message) for message in parts]
    turns = [turn for turn in turns if turn.message.speaker != "assistant"] or turns
    chosen = _choose(turns, retrievals)
    documents = chosen and chosen[0].documents_with(retrievals, chosen[1])
    if not chosen or not documents:
        return CurrentTurn(merged(retrievals), known, UNCLEAR)
    turn, _ = chosen
    wanted = set(documents)
    here = {each: turn.within(found) for each, found in known.items() if each in wanted}  # the longest first
    return CurrentTurn(documents, {each: found for each, found in here.items() if found})


def _choose(turns: Sequence[Turn], retrievals: Sequence[Sequence[str]]) -> tuple[Turn, int] | None:
    """The message with this turn's context, and the index of its retrieval; ``None`` if it cannot be told.

    A retrieval of which but a part is in an earlier message, beside documents of others, was left out of this turn's
    prompt; one of which the prompt holds nothing but a quote, too. Then the one before it counts.
    """
    fallback: tuple[Turn, int] | None = None
    held = [turn for turn in turns if turn.documents]
    for index, retrieval in enumerate(retrievals):
        retrieved = set(retrieval)
        options = [turn for turn in held if not turn.documents.isdisjoint(retrieved)]
        if not options:
            continue
        turn = _latest(options, retrieved)
        if turn is None:
            return None
        fits = turn is held[-1] or turn.documents <= retrieved or retrieved <= turn.documents
        blocks = turn.blocks_with(retrieved)
        alone = len(blocks) == 1 and len(blocks[0].documents) == 1 and blocks[0].inside_sentence
        quoted = alone and not all(each.inside_sentence for each in held)
        if fits and not quoted:
            return turn, index
        fallback = fallback or (turn, index)
    return fallback


def _latest(turns: Sequence[Turn], retrieved: AbstractSet[str]) -> Turn | None:
    """The message that is later than all others, or that the later ones only quote."""
    for index in reversed(range(len(turns))):
        before = all(turns[index].comes_after(other, retrieved) for other in turns[:index])
        if before and all(other.comes_after(turns[index], retrieved) is False for other in turns[index + 1 :]):
            return turns[index]
    return None
