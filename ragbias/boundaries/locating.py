"""Find the documents of a prompt: take document texts from one source after another, and search for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from ragbias.boundaries.matching import Occurrences, count_outside, filter_occurrences, is_long, occurrences_by_document
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.recognisers import Segmenter, check_segmenter, find_below_headers, segment, select_message
from ragbias.boundaries.retrievals import Boundaries, Source, check_for_other_texts, locate_recent, locate_retrievals
from ragbias.boundaries.sources import Registry, Retrieval, current_documents, document_texts
from ragbias.boundaries.splitting import DocumentNumbers, split
from ragbias.boundaries.text import join_reasons
from ragbias.errors import AmbiguousSegmentsError, WrongTypeError

NOTHING_GIVEN = "no documents were given"
NOTHING_KNOWN = f"{NOTHING_GIVEN}, and none were retrieved recently in this process"
NOTHING_RECOGNISED = (
    f"{NOTHING_GIVEN}, and no recent retrieval was recognised; the prompt must contain the documents verbatim"
)
WITHIN_TEXT = (
    "the prompt contains recently retrieved texts, but not as lines of one message, so they may belong to the question"
)


def locate(
    text: str,
    *,
    documents: Sequence[str] | None = None,
    artifacts: Sequence[Sequence[str]] = (),
    run: Sequence[Sequence[str]] = (),
    registry: Registry | None = None,
    segmenter: Segmenter | None = None,
) -> Boundaries:
    """Find the retrieved documents in a prompt. The first source with a document in the prompt is used.

    Documents must occur in full: verbatim, stripped, or escaped as in a printed list. Documents from ``documents``,
    ``artifacts`` and ``run`` are also found if a formatter replaced all line breaks in documents by spaces, or cut all
    documents to the same length. If no source has a document in the prompt, documents are found by numbered headers,
    such as ``Document [1](Title: ...)``, between ``<documents>`` and ``</documents>``.

    In a conversation, only the last message that contains documents is used. If the choice is ambiguous, no
    documents are found, and ``reason`` explains why.

    Args:
        text: the prompt for the model, including the chat template.
        documents: the documents' texts; default: the documents of an enclosing ``ragbias.documents`` block. An empty
            list means that the prompt has no documents.
        artifacts: a list of texts for each tool message whose ``artifact`` has documents, the latest first.
        run: a list of texts for each retrieval in the request's run, the latest first.
        registry: recent retrievals.
        segmenter: finds documents that the sources above do not know or cannot separate. It is a string, a pattern or
            a function. A string is the separator; it must also occur before the first document and after the last. A
            compiled pattern matches a document, or captures it as group 1. A function takes the prompt and returns a
            list of ascending ``(begin, end)`` in characters, or a list of texts that occur in the prompt.

    Raises:
        WrongTypeError: the text is not a string, or documents are not texts.
        SegmenterError: the segmenter has the wrong type, failed, or returned invalid spans.
    """
    if not isinstance(text, str):
        raise WrongTypeError(f"a prompt is a string, got {type(text).__name__}")
    if segmenter is not None:
        check_segmenter(segmenter)
    documents = current_documents() if documents is None else documents
    if documents is not None and not documents:
        return Boundaries((), "documents", 0, "an empty list of documents was given")

    known = _find_known_texts(text, {"documents": [documents or ()], "artifact": artifacts, "run": run}, registry)
    attempts = _try_known_texts(text, known)
    if documents is None and attempts[-1].spans:
        attempts[-1] = check_for_other_texts(text, attempts[-1], registry, known.every_occurrence)
    if segmenter is not None:
        attempts[-1] = _improve_with_segmenter(text, segmenter, attempts[-1], len(documents or ()))
    if attempts[-1].source == "none":
        attempts.append(_locate_by_headers(text, attempts))

    result = attempts[-1]
    reason = join_reasons(*(attempt.reason for attempt in attempts))
    if not reason and not result.spans:
        reason = _why_nothing_was_found(registry, known)
    n_left_plain = count_outside(text, known.every_occurrence, result.spans)
    if documents is not None:
        return replace(result, reason=reason, n_left_plain=n_left_plain)
    inside = filter_occurrences(known.occurrences, lambda occurrence: occurrence.overlaps(result.spans))
    never_inside = {document: group for document, group in known.occurrences.items() if document not in inside}
    n_untreated = count_outside(text, never_inside, result.spans)
    return replace(result, reason=reason, n_left_plain=n_left_plain, n_untreated=n_untreated)


@dataclass(frozen=True)
class _KnownTexts:
    """Texts of documents that a prompt may contain, and their occurrences in the prompt.

    Attributes:
        retrievals: lists of texts by source (documents, artifact, run), without empty lists.
        occurrences: occurrences of the texts in ``retrievals``.
        recent: retrievals in the registry that have at least one text in the prompt.
        remembered: occurrences of the registry's texts.
    """

    retrievals: Mapping[Source, Sequence[Retrieval]]
    occurrences: Occurrences
    recent: Sequence[Retrieval]
    remembered: Occurrences

    @property
    def every_occurrence(self) -> Occurrences:
        return {**self.occurrences, **self.remembered}


def _find_known_texts(
    text: str, lists: Mapping[Source, Sequence[Iterable[str]]], registry: Registry | None
) -> _KnownTexts:
    """Search for the texts of all sources. Drop a retrieval whose only text consists of texts of other retrievals."""
    retrievals: dict[Source, list[Retrieval]] = {}
    for source, given in lists.items():
        retrievals[source] = list(filter(None, map(document_texts, given)))
    every_retrieval = chain.from_iterable(retrievals.values())
    occurrences = occurrences_by_document(text, chain.from_iterable(every_retrieval))
    remembered = occurrences_by_document(text, registry.likely_in(text), strict=True) if registry else {}
    candidates = registry.candidates() if registry else []
    recent = [texts for texts in candidates if not remembered.keys().isdisjoint(texts)]
    found_by_listener = [*retrievals["artifact"], *retrievals["run"], *recent]
    joined = {texts for texts in found_by_listener if _is_joined_text(texts, found_by_listener)}
    for source in ("artifact", "run"):
        retrievals[source] = [texts for texts in retrievals[source] if texts not in joined]
    recent = [texts for texts in recent if texts not in joined]
    not_empty = {source: found for source, found in retrievals.items() if found}
    return _KnownTexts(not_empty, occurrences, recent, remembered)


def _is_joined_text(retrieval: Retrieval, others: Sequence[Retrieval]) -> bool:
    """Whether a retrieval is one text that joins several texts of other retrievals."""
    joined = retrieval[0]
    if len(set(retrieval)) > 1:
        return False
    others = [other for other in others if joined not in other]
    parts = {text for other in others for text in other if is_long(text) and text in joined}
    return len(parts) > 1


def _try_known_texts(text: str, known: _KnownTexts) -> list[Boundaries]:
    """Return one result per source, until a source has a document in the prompt. The registry is the last source."""
    attempts: list[Boundaries] = []
    for source, retrievals in known.retrievals.items():
        attempts.append(locate_retrievals(text, retrievals, known.occurrences, source))
        if attempts[-1].source != "none":
            return attempts
    return [*attempts, locate_recent(text, known.recent, known.remembered)]


def _why_nothing_was_found(registry: Registry | None, known: _KnownTexts) -> str:
    if any(map(is_long, known.remembered)):
        return WITHIN_TEXT
    if registry is None:
        return NOTHING_GIVEN
    return NOTHING_RECOGNISED if registry else NOTHING_KNOWN


def _locate_by_segmenter(text: str, segmenter: Segmenter) -> Boundaries:
    documents = segment(text, segmenter)
    texts = [document for document in documents if isinstance(document, str)]
    if texts:
        result = locate_retrievals(text, [tuple(texts)], occurrences_by_document(text, texts), "segmenter")
        return result if result.spans else replace(result, source="none")
    spans = [document for document in documents if not isinstance(document, str)]
    if not spans:
        return Boundaries((), "none", 0, "the segmenter found no documents")
    in_message = select_message(text, spans)
    apart = len(spans) - len(in_message)
    reason = f"{apart} documents are in another message and are left as plain text" if apart else ""
    return Boundaries(tuple(in_message), "segmenter", len(in_message), reason)


def _improve_with_segmenter(text: str, segmenter: Segmenter, result: Boundaries, n_named: int) -> Boundaries:
    """Return the segmenter's documents if ``result`` is incomplete and the segmenter finds more, else ``result``.

    ``n_named`` is the number of documents that the caller passed.
    """
    can_be_split = _can_be_split(text, result)
    if can_be_split and result.n_found == result.n_expected:
        return result
    segmented = _locate_by_segmenter(text, segmenter)
    if result == Boundaries((), "none", 0, ""):
        return segmented
    if (_can_be_split(text, segmented), segmented.n_found) <= (can_be_split, result.n_found):
        return result
    n_expected = max(n_named, result.n_found or result.n_expected)
    if segmented.n_found >= n_expected:
        return segmented
    found = f"the segmenter found {segmented.n_found} of {n_expected}"
    return replace(segmented, n_expected=n_expected, reason=join_reasons(result.reason, segmented.reason, found))


def _can_be_split(text: str, result: Boundaries) -> bool:
    """Whether the prompt can be split at the documents of ``result``, perhaps after their numbers are removed."""
    if not result.spans:
        return False
    with suppress(AmbiguousSegmentsError):
        split(text, result.spans, DocumentNumbers(), strip_numbering=False)
        return True
    with suppress(AmbiguousSegmentsError):
        numbers = find_numbering(text, result.texts or result.spans, result.metadata, result.spans)
        split(text, result.spans, numbers, strip_numbering=True)
        return True
    return False


def _locate_by_headers(text: str, failures: Sequence[Boundaries]) -> Boundaries:
    """Find documents by numbered headers. If none are found, copy ``n_expected`` from the first failed source."""
    spans, doubt = find_below_headers(text)
    n_expected = len(spans) or next((failure.n_expected for failure in failures if failure.n_expected), 0)
    return Boundaries(tuple(spans), "headers" if spans else "none", n_expected, doubt)
