"""Find the documents of a prompt: take document texts from one source after another, and search for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from ragbias.boundaries.assignment import (
    UNCLEAR,
    Known,
    assign_occurrences,
    count_expected,
    count_outside,
    is_joined_text,
    is_long,
    merge_counts,
    message_bounds,
    outermost_occurrences,
    outside_sentences,
    select_last_message,
)
from ragbias.boundaries.matching import (
    Occurrence,
    count_absent,
    ends_block,
    have_same_ends,
    is_block,
    occurrences_by_document,
    occurrences_of,
    precedes_other_blocks,
)
from ragbias.boundaries.metadata_blocks import extend_to_metadata, printed_metadata
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.recognisers import Segmenter, check_segmenter, find_below_headers, segment, select_message
from ragbias.boundaries.sources import (
    KnownText,
    Registry,
    Retrieval,
    current_documents,
    document_texts,
    fields_of,
)
from ragbias.boundaries.splitting import DocumentNumbers, split
from ragbias.boundaries.text import CharSpan
from ragbias.errors import AmbiguousSegmentsError, WrongTypeError

NOTHING_GIVEN = "no documents were given"
NOTHING_KNOWN = f"{NOTHING_GIVEN}, and none were retrieved recently in this process"
NOTHING_RECOGNISED = (
    f"{NOTHING_GIVEN}, and no recent retrieval was recognised; the prompt must contain the documents verbatim"
)
WITHIN_TEXT = (
    "the prompt contains recently retrieved texts, but not as lines of one message, so they may belong to the question"
)
ORIGIN = {
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
            run), ``"registry"`` (retrieved recently), ``"segmenter"``, ``"headers"`` (numbered), or ``"none"``.
        n_expected: number of documents that the source provides. For the registry, only documents in the prompt count.
            If the prompt has no document of any source, this is the number of the first source with documents.
        reason: why documents are missing; empty if none is missing. Never contains text of a document.
        n_left_plain: number of texts of any source that occur in the prompt outside ``spans``. They are quotations or
            documents of earlier turns.
        n_untreated: number of texts in ``n_left_plain`` that come from this run or its tool messages, and that do not
            occur in ``spans`` as well.
        n_absent: number of expected documents of which the prompt contains no part.
        texts: spans of the documents' texts without their metadata; empty if no source knows the texts.
        metadata: the metadata of each document as printed in the prompt; empty if none is known.
        numbering: see ``ragbias.generation.request.Report``. It is set when the prompt is split.
    """

    spans: tuple[CharSpan, ...]
    source: str
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
    ``artifacts`` and ``run`` are also found if a formatter joined the lines of all documents, or cut all documents to
    the same length. If no source has a document in the prompt, documents are found by numbered headers,
    such as ``Document [1](Title: ...)``, between ``<documents>`` and ``</documents>``.

    In a conversation, only documents of the last message with documents are found. If the choice is ambiguous, no
    documents are found, and ``reason`` explains why.

    Args:
        text: the prompt for the model, including the chat template.
        documents: the documents' texts; default: the documents of an enclosing ``ragbias.documents`` block. An empty
            list means that the prompt has no documents.
        artifacts: a list of texts for each tool message whose ``artifact`` has documents, the latest first.
        run: a list of texts for each retrieval in the request's run, the latest first.
        registry: recent retrievals.
        segmenter: finds documents that the sources above do not know or cannot separate. It is a string, a pattern or
            a function. A string precedes, separates and follows the documents. A compiled pattern matches a document,
            or captures it as group 1. A function takes the prompt and returns a list of ascending ``(begin, end)`` in
            characters, or a list of texts that occur in the prompt.

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

    lists = {"documents": [documents or ()], "artifact": artifacts, "run": run}
    known = _find_known_texts(text, lists, registry)
    attempts: list[Boundaries] = []  # one for each source, until a source has a document in the prompt
    for source, retrievals in known.retrievals.items():
        attempts.append(_locate_retrievals(text, retrievals, known.occurrences, source))
        if attempts[-1].source != "none":
            break
    else:
        attempts.append(_locate_by_registry(text, known.recent, known.remembered))
    if documents is None and attempts[-1].spans:
        attempts[-1] = _check_for_other_texts(text, attempts[-1], registry, known)
    if segmenter is not None:
        attempts[-1] = _improve_with_segmenter(text, segmenter, attempts[-1], len(documents or ()))
    if attempts[-1].source == "none":
        attempts.append(_locate_by_headers(text, attempts))

    *_, result = attempts
    reason = "; ".join(attempt.reason for attempt in attempts if attempt.reason)
    if not (result.spans or reason):
        reason = _why_nothing_was_found(registry, known)
    n_left_plain = count_outside(text, {**known.occurrences, **known.remembered}, result.spans)
    plain = {doc: found for doc, found in known.occurrences.items() if not any(o.is_in(result.spans) for o in found)}
    n_untreated = count_outside(text, plain, result.spans) if documents is None else 0
    return replace(result, reason=reason, n_left_plain=n_left_plain, n_untreated=n_untreated)


@dataclass(frozen=True)
class _KnownTexts:
    """Texts of documents that a prompt may contain, and their occurrences in the prompt.

    Attributes:
        retrievals: lists of texts by source (documents, artifact, run), without empty lists.
        occurrences: occurrences of the texts in ``retrievals``.
        recent: retrievals of the registry with a text in the prompt.
        remembered: occurrences of the registry's texts.
    """

    retrievals: Mapping[str, Sequence[Retrieval]]
    occurrences: Known
    recent: Sequence[Retrieval]
    remembered: Known


def _find_known_texts(
    text: str, lists: Mapping[str, Sequence[Iterable[str]]], registry: Registry | None
) -> _KnownTexts:
    """Search for the texts of all sources. Drop retrievals that join the texts of other retrievals."""
    retrievals = {source: [texts for texts in map(document_texts, some) if texts] for source, some in lists.items()}
    occurrences = occurrences_by_document(text, chain.from_iterable(chain.from_iterable(retrievals.values())))
    remembered = occurrences_by_document(text, registry.likely_in(text), strict=True) if registry else {}
    candidates = registry.candidates() if registry else []
    recent = [texts for texts in candidates if not remembered.keys().isdisjoint(texts)]
    parts = [*retrievals["artifact"], *retrievals["run"], *recent]
    joined = {texts for texts in parts if is_joined_text(texts, parts)}
    for source in ("artifact", "run"):
        retrievals[source] = [texts for texts in retrievals[source] if texts not in joined]
    return _KnownTexts(
        {source: some for source, some in retrievals.items() if some},
        occurrences,
        [texts for texts in recent if texts not in joined],
        remembered,
    )


def _why_nothing_was_found(registry: Registry | None, known: _KnownTexts) -> str:
    if any(map(is_long, known.remembered)):
        return WITHIN_TEXT
    if registry is None:
        return NOTHING_GIVEN
    return NOTHING_RECOGNISED if registry else NOTHING_KNOWN


def _locate_retrievals(text: str, retrievals: Sequence[Retrieval], occurrences: Known, source: str) -> Boundaries:
    """Find the documents of one source in the last message with documents.

    The result has no spans if the choice of the message or of occurrences is ambiguous. The result's source is
    ``"none"`` if no document is in the prompt.
    """
    documents = set(chain.from_iterable(retrievals))
    occurrences = {document: some for document, some in occurrences.items() if document in documents}
    in_message = select_last_message(text, occurrences)
    if in_message is None:
        return Boundaries((), source, len(occurrences), UNCLEAR)
    if any(isinstance(document, KnownText) for document in documents):  # retrievals of plain strings may be questions
        retrievals = [r for r in retrievals if in_message.keys() >= set(r) or any(isinstance(t, KnownText) for t in r)]
    candidates = [retrieval for retrieval in retrievals if not in_message.keys().isdisjoint(retrieval)]
    if not candidates:  # e.g. a prompt that only asks for search terms
        n_documents = merge_counts(retrievals).total()
        reason = f"none of the {n_documents} documents {ORIGIN[source]} appears verbatim in the prompt"
        return Boundaries((), "none", n_documents, reason)

    expected = count_expected(text, candidates, in_message)
    fields = fields_of(chain.from_iterable(candidates))
    found = assign_occurrences(text, list(expected.elements()), in_message)
    if found is None:
        return Boundaries((), source, expected.total(), UNCLEAR)
    try:
        spans = extend_to_metadata(text, [o.span for o in found], [fields.get(o.document, {}) for o in found])
    except AmbiguousSegmentsError as error:
        return Boundaries((), source, expected.total(), str(error))

    n_missing, n_absent, reason = _count_missing(text, source, expected, found, spans, occurrences)
    metadata = tuple(printed_metadata(fields.get(occurrence.document, {})) for occurrence in found)
    return Boundaries(
        tuple(spans),
        source,
        len(found) + n_missing,
        reason,
        n_absent=n_absent,
        texts=tuple(occurrence.span for occurrence in found),
        metadata=metadata if any(metadata) else (),
    )


def _count_missing(
    text: str,
    source: str,
    expected: Counter[str],
    found: Sequence[Occurrence],
    spans: Sequence[CharSpan],
    occurrences: Known,
) -> tuple[int, int, str]:
    """Return how many expected documents were not found, how many of these the prompt lacks, and the reason."""
    missing = expected - Counter(occurrence.document for occurrence in found)
    if source == "registry":  # a text that occurs only inside the documents is not missing
        for document in missing:
            outside = sum(not occurrence.is_in(spans) for occurrence in occurrences_of(text, document))
            missing[document] = min(missing[document], outside)
    unknown = [document for document in missing.elements() if document not in occurrences]
    n_absent = count_absent(text, unknown, found)
    n_lost = 0 if source == "registry" else len(unknown)  # recent retrievals may belong to other prompts
    n_apart = missing.total() - n_lost
    reasons = []
    if n_lost:
        n_documents = expected.total()
        reasons.append(f"{n_lost} of the {n_documents} documents {ORIGIN[source]} do not appear verbatim in the prompt")
    if n_apart:
        reasons.append(f"{n_apart} documents are apart from the others and are left as plain text")
    # the prompt of a grader contains one of the retrieved documents by design
    is_grader = len(found) == 1 and n_absent == missing.total() and source in ("artifact", "run")
    return missing.total(), n_absent, "" if is_grader else "; ".join(reasons)


def _locate_by_registry(text: str, candidates: Sequence[Retrieval], remembered: Known) -> Boundaries:
    """Find the latest recorded retrieval in the prompt.

    The result's source is ``"none"`` if the retrieved texts may be part of the question. Short texts such as ``yes``
    occur in any prompt. They count only outside of sentences, and only if the prompt contains a long text of the same
    retrieval.
    """
    nothing = Boundaries((), "none", 0, "")
    documents = set(chain.from_iterable(candidates))
    separate = outside_sentences(text, {doc: found for doc, found in remembered.items() if doc in documents})
    long = {document for document in separate if is_long(document)}
    with_long = [retrieval for retrieval in candidates if not long.isdisjoint(retrieval)]
    retrievals = [
        tuple(doc for doc in retrieval if doc in remembered or (is_long(doc) and occurrences_of(text, doc)))
        for retrieval in with_long
    ]
    result = _locate_retrievals(text, retrievals, separate, "registry")
    if not result.spans:  # no retrieved text, or an unclear choice
        return nothing if result.source == "none" else result
    found = [Occurrence(*span, "") for span in result.spans]
    end = message_bounds(text, found)[1]
    later = {document for document, some in remembered.items() if some[-1].begin >= end}  # in a chat's next turn
    for texts in candidates:
        if texts not in with_long and len(set(texts)) > 1 and later >= set(texts):
            reason = "a later message contains retrieved texts that are too short to be recognised"
            return Boundaries((), "none", len(texts), reason)
    ends_line = any(ends_block(text, occurrence) for occurrence in found) or have_same_ends(text, found)
    if not (is_block(text, found[0]) if len(found) == 1 else ends_line):  # e.g. ``Is it true that <document>?``
        return nothing
    others = set(chain.from_iterable(with_long)) - remembered.keys()
    n_changed = len(others) - count_absent(text, others, found)
    if not n_changed:
        return result
    incomplete = nothing if len(found) == 1 else result  # a grader's prompt contains no part of the other documents
    reason = f"{n_changed} of the retrieved documents are in the prompt, but cut or changed"
    return replace(incomplete, n_expected=incomplete.n_expected and incomplete.n_expected + n_changed, reason=reason)


def _check_for_other_texts(text: str, result: Boundaries, registry: Registry | None, known: _KnownTexts) -> Boundaries:
    """Return ``result``, or a result without spans if its message seems to contain further, unknown documents."""
    begin, end = message_bounds(text, [Occurrence(*span, "") for span in result.spans])
    likely = registry.everywhere.likely_in(text[begin:end]) if registry and registry.everywhere else set()
    likely -= known.occurrences.keys() | known.remembered.keys()
    others = [other for other in likely if isinstance(other, KnownText) and is_long(other)]
    found = outermost_occurrences(text, occurrences_by_document(text, others, strict=True))
    n_others = sum(begin <= other.begin < end and not other.is_in(result.spans) for other in found)
    if n_others:
        reason = f"{n_others} documents in the prompt were retrieved in another thread or task"
    elif precedes_other_blocks(text[begin:end], [(left - begin, right - begin) for left, right in result.spans]):
        n_others, reason = 1, "the label of the known documents also precedes other text, which may be a document"
    else:
        return result
    return Boundaries((), "none", result.n_found + n_others, reason)


def _locate_by_segmenter(text: str, segmenter: Segmenter) -> Boundaries:
    segments = segment(text, segmenter)
    if texts := [text for text in segments if isinstance(text, str)]:
        result = _locate_retrievals(text, [tuple(texts)], occurrences_by_document(text, texts), "segmenter")
        return result if result.spans else replace(result, source="none")
    spans = [span for span in segments if not isinstance(span, str)]
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
    reasons = (result.reason, segmented.reason, f"the segmenter found {segmented.n_found} of {n_expected}")
    return replace(segmented, n_expected=n_expected, reason="; ".join(filter(None, reasons)))


def _can_be_split(text: str, result: Boundaries) -> bool:
    """Whether the prompt can be split at the documents of ``result``, perhaps after their numbers are removed."""
    if not result.spans:
        return False
    with suppress(AmbiguousSegmentsError):
        split(text, result.spans, DocumentNumbers(), strip_numbering=False)
        return True
    with suppress(AmbiguousSegmentsError):
        numbers = find_numbering(text, result.texts or result.spans, result.metadata)
        split(text, result.spans, numbers, strip_numbering=True)
        return True
    return False


def _locate_by_headers(text: str, failures: Sequence[Boundaries]) -> Boundaries:
    """Find documents by numbered headers. If there are none, use ``n_expected`` of the first failed source."""
    spans, doubt = find_below_headers(text)
    n_expected = len(spans) or next((failure.n_expected for failure in failures if failure.n_expected), 0)
    return Boundaries(tuple(spans), "headers" if spans else "none", n_expected, doubt)
