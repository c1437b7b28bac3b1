"""Find the documents of one source in a prompt, given the texts that were retrieved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, TypeAlias

from ragbias.boundaries.assignment import assign_occurrences, is_in_sentence, select_last_message
from ragbias.boundaries.matching import (
    Occurrence,
    Occurrences,
    count_absent,
    ends_block,
    have_same_ends,
    is_block,
    is_long,
    occurrences_by_document,
    occurrences_of,
    outermost_occurrences,
    precedes_other_blocks,
)
from ragbias.boundaries.metadata_blocks import Fields, extend_to_metadata, printed_metadata
from ragbias.boundaries.sources import KnownText, Registry, Retrieval, fields_of
from ragbias.boundaries.text import CharSpan, gaps_between, is_separator, message_around
from ragbias.errors import AmbiguousSegmentsError

Source: TypeAlias = Literal["prompt", "documents", "artifact", "run", "registry", "segmenter", "headers", "none"]
"""Where the documents of a prompt come from, see ``Boundaries.source`` and ``Report.source``."""

UNCLEAR = "documents occur several times and cannot be distinguished; pass a segmenter= that finds the right ones"
ORIGIN: Mapping[Source, str] = {
    "documents": "given explicitly",
    "artifact": "carried by tool messages",
    "run": "retrieved in this run",
    "registry": "retrieved recently",
    "segmenter": "given by the segmenter",
}


@dataclass(frozen=True)
class Boundaries:
    """Spans of the documents in a prompt, with their source.

    Attributes:
        spans: ``(begin, end)`` of each document in characters of the prompt, ascending, never overlapping. A document
            includes its known metadata around the text (``Title: ...``, ``Source: ...``).
        source: ``"documents"`` (given explicitly), ``"artifact"`` (in tool messages), ``"run"`` (retrieved in the same
            run), ``"registry"`` (retrieved recently), ``"segmenter"``, ``"headers"`` (numbered), ``"prompt"`` (passed
            as a ``Prompt``), or ``"none"``.
        n_expected: number of documents that the source provides. For the registry, only documents in the prompt count.
            If the prompt contains no documents, this is the number that the first source with any documents provides.
        reason: why documents are missing; empty if none is missing. Never contains text of a document.
        n_left_plain: number of texts of any source that occur in the prompt outside ``spans``. They are quotations or
            documents of earlier turns.
        n_untreated: number of texts in ``n_left_plain`` that come from this run or its tool messages, and that never
            occur inside ``spans``.
        n_absent: number of expected documents of which the prompt contains no part.
        texts: spans of the documents' texts without their metadata; empty if no source knows the texts.
        metadata: the metadata of each document as printed in the prompt; empty if none is known.
        numbering: see ``ragbias.generation.request.Report``. It is set when the prompt is split.
    """

    spans: tuple[CharSpan, ...]
    source: Source
    n_expected: int
    reason: str
    n_left_plain: int = 0
    n_untreated: int = 0
    n_absent: int = 0
    texts: tuple[CharSpan, ...] = field(default=(), repr=False)
    metadata: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    numbering: Literal["", "present", "stripped"] = ""

    @property
    def n_found(self) -> int:
        return len(self.spans)


def locate_retrievals(
    text: str, retrievals: Sequence[Retrieval], occurrences: Occurrences, source: Source
) -> Boundaries:
    """Find the documents of one source in the last message with documents.

    The result has no spans if the choice of the message or of occurrences is ambiguous. The result's source is
    ``"none"`` if no document is in the prompt.
    """
    documents = set(chain.from_iterable(retrievals))
    occurrences = {document: group for document, group in occurrences.items() if document in documents}
    in_message = select_last_message(text, occurrences)
    if in_message is None:
        return Boundaries((), source, len(occurrences), UNCLEAR)
    retrievals = _without_questions(retrievals, in_message)
    candidates = [retrieval for retrieval in retrievals if not in_message.keys().isdisjoint(retrieval)]
    if not candidates:  # e.g. a prompt that only asks for search terms
        n_documents = _merge_counts(retrievals).total()
        reason = f"none of the {n_documents} documents {ORIGIN[source]} appears verbatim in the prompt"
        return Boundaries((), "none", n_documents, reason)
    expected = _count_expected(text, candidates, in_message)
    chosen = assign_occurrences(text, expected, in_message)
    if chosen is None:
        return Boundaries((), source, expected.total(), UNCLEAR)
    known_fields = fields_of(chain.from_iterable(candidates))
    fields = [known_fields.get(occurrence.document, {}) for occurrence in chosen]
    return _describe(text, source, expected, chosen, fields, occurrences)


def _without_questions(retrievals: Sequence[Retrieval], in_message: Occurrences) -> Sequence[Retrieval]:
    """Drop retrievals that may be lists of questions.

    They have no metadata although other retrievals do, and some of their texts are not in the message.
    """
    with_metadata = [any(isinstance(text, KnownText) for text in retrieval) for retrieval in retrievals]
    if not any(with_metadata):
        return retrievals
    pairs = zip(retrievals, with_metadata, strict=True)
    return [retrieval for retrieval, has_metadata in pairs if has_metadata or in_message.keys() >= set(retrieval)]


def _count_expected(text: str, candidates: Sequence[Retrieval], in_message: Occurrences) -> Counter[str]:
    """Count the documents that the prompt should contain, from ``candidates``, the latest retrieval first.

    Documents of the latest retrieval are always expected. Documents of earlier retrievals are expected if they occur
    outside longer documents.
    """
    latest, *earlier = candidates
    outermost = {occurrence.document for occurrence in outermost_occurrences(text, in_message)}
    return _merge_counts([latest, *(filter(outermost.__contains__, retrieval) for retrieval in earlier)])


def _merge_counts(retrievals: Iterable[Iterable[str]]) -> Counter[str]:
    """Count the texts of several retrievals. The count of a text is its maximum over the retrievals."""
    merged: Counter[str] = Counter()
    for retrieval in retrievals:
        merged |= Counter(retrieval)
    return merged


def _describe(
    text: str,
    source: Source,
    expected: Counter[str],
    chosen: Sequence[Occurrence],
    fields: Sequence[Fields],
    occurrences: Occurrences,
) -> Boundaries:
    """Return the boundaries of the chosen occurrences with their metadata, and count the missing documents."""
    texts = [occurrence.span for occurrence in chosen]
    try:
        spans = extend_to_metadata(text, texts, fields)
    except AmbiguousSegmentsError as error:
        return Boundaries((), source, expected.total(), str(error))
    missing = expected - Counter(occurrence.document for occurrence in chosen)
    if source == "registry":  # a text that occurs only inside the documents is not missing
        for document in missing:
            outside = sum(not occurrence.overlaps(spans) for occurrence in occurrences_of(text, document))
            missing[document] = min(missing[document], outside)
    unknown = [document for document in missing.elements() if document not in occurrences]
    n_absent = count_absent(text, unknown, texts)
    # the prompt of a grader contains one of the retrieved documents by design
    is_grader = len(chosen) == 1 and n_absent == missing.total() and source in ("artifact", "run")
    reason = "" if is_grader else _why_missing(source, expected.total(), missing.total(), len(unknown))
    metadata = tuple(map(printed_metadata, fields))
    return Boundaries(
        tuple(spans),
        source,
        len(chosen) + missing.total(),
        reason,
        n_absent=n_absent,
        texts=tuple(texts),
        metadata=metadata if any(metadata) else (),
    )


def _why_missing(source: Source, n_expected: int, n_missing: int, n_unknown: int) -> str:
    """Explain why documents are missing. ``n_unknown`` of the missing documents are not in the prompt."""
    n_lost = 0 if source == "registry" else n_unknown  # recent retrievals may belong to other prompts
    n_apart = n_missing - n_lost
    reasons = []
    if n_lost:
        reasons.append(f"{n_lost} of the {n_expected} documents {ORIGIN[source]} do not appear verbatim in the prompt")
    if n_apart:
        reasons.append(f"{n_apart} documents are apart from the others and are left as plain text")
    return "; ".join(reasons)


def locate_recent(text: str, recent: Sequence[Retrieval], remembered: Occurrences) -> Boundaries:
    """Find the latest retrieval of the registry in the prompt.

    ``recent`` are the retrievals that have at least one text in the prompt. ``remembered`` are the occurrences of their
    texts. The result's source is ``"none"`` if the texts may be part of the question. Short texts such as ``yes`` occur
    in any prompt. They count only outside of sentences, and only if the prompt contains a long text of the same
    retrieval.
    """
    nothing = Boundaries((), "none", 0, "")
    separate = _outside_sentences(text, recent, remembered)
    long = set(filter(is_long, separate))
    with_long = [retrieval for retrieval in recent if not long.isdisjoint(retrieval)]
    in_prompt = {doc for doc in chain(*with_long) if doc in remembered or (is_long(doc) and occurrences_of(text, doc))}
    retrievals = [tuple(filter(in_prompt.__contains__, retrieval)) for retrieval in with_long]
    result = locate_retrievals(text, retrievals, separate, "registry")
    if not result.spans:  # no retrieved text, or an unclear choice
        return nothing if result.source == "none" else result

    without_long = [retrieval for retrieval in recent if retrieval not in with_long]
    n_short = _count_short_texts_after(text, result.spans, without_long, remembered)
    if n_short:
        reason = "a later message contains retrieved texts that are too short to be recognised"
        return Boundaries((), "none", n_short, reason)
    if not _are_blocks(text, result.spans):
        return nothing
    others = set(chain.from_iterable(with_long)) - remembered.keys()
    n_changed = len(others) - count_absent(text, others, result.spans)
    if not n_changed:
        return result
    reason = f"{n_changed} of the retrieved documents are in the prompt, but cut or changed"
    if result.n_found == 1:  # a grader's prompt contains no part of the other documents
        return replace(nothing, reason=reason)
    return replace(result, n_expected=result.n_expected + n_changed, reason=reason)


def _outside_sentences(text: str, recent: Sequence[Retrieval], remembered: Occurrences) -> Occurrences:
    """Return the outermost occurrences. Skip short texts in sentences, such as ``due`` in ``Is it due?``."""
    documents = set(chain.from_iterable(recent))
    known = {document: group for document, group in remembered.items() if document in documents}
    outermost = outermost_occurrences(text, known)
    separate: dict[str, list[Occurrence]] = {document: [] for document in known}
    for index, occurrence in enumerate(outermost):
        gaps = gaps_between(text, [other.span for other in outermost[max(0, index - 1) : index + 2]])
        is_beside_mark = any(is_separator(gap) and not {"|", ";"}.isdisjoint(gap) for gap in gaps)  # ``Due; Paid``
        if is_long(occurrence.document) or is_beside_mark or not is_in_sentence(text, *occurrence.span):
            separate[occurrence.document].append(occurrence)
    return {document: group for document, group in separate.items() if group}


def _count_short_texts_after(
    text: str, spans: Sequence[CharSpan], retrievals: Sequence[Retrieval], remembered: Occurrences
) -> int:
    """Find a retrieval whose texts all occur after the message with ``spans``. Return its number of texts, or 0.

    This retrieval may be the context of a later turn. A retrieval of a single text does not count, because the text may
    be a word of the question.
    """
    _, end = message_around(text, spans[0][0], spans[-1][1])
    later = {document for document, group in remembered.items() if group[-1].begin >= end}
    complete = [texts for texts in retrievals if len(set(texts)) > 1 and later.issuperset(texts)]
    return len(complete[0]) if complete else 0


def _are_blocks(text: str, spans: Sequence[CharSpan]) -> bool:
    """Whether texts are documents, not part of a sentence such as ``Is it true that <document>?``."""
    if len(spans) == 1:
        return is_block(text, *spans[0])
    return any(ends_block(text, end) for _, end in spans) or have_same_ends(text, spans)


def check_for_other_texts(
    text: str, result: Boundaries, registry: Registry | None, known: Collection[str]
) -> Boundaries:
    """Return a result without spans if the message seems to contain other, unknown documents, else ``result``."""
    begin, end = message_around(text, result.spans[0][0], result.spans[-1][1])
    likely = registry.everywhere.likely_in(text[begin:end]) if registry and registry.everywhere else set()
    others = [other for other in likely.difference(known) if isinstance(other, KnownText) and is_long(other)]
    elsewhere = outermost_occurrences(text, occurrences_by_document(text, others, strict=True))
    n_others = sum(begin <= other.begin < end and not other.overlaps(result.spans) for other in elsewhere)
    if n_others:
        reason = f"{n_others} documents in the prompt were retrieved in another thread or task"
    elif precedes_other_blocks(text[begin:end], [(left - begin, right - begin) for left, right in result.spans]):
        n_others, reason = 1, "the label of the known documents also precedes other text, which may be a document"
    else:
        return result
    return Boundaries((), "none", result.n_found + n_others, reason)
