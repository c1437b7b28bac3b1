"""Find the documents of a prompt: each source is tried in turn, and its texts are verified in the prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from ragbias.boundaries.assignment import (
    UNCLEAR,
    Known,
    assigned,
    in_last_message,
    is_long,
    is_uniform,
    n_outside,
    outermost,
)
from ragbias.boundaries.matching import (
    COVERAGE,
    MAX_OCCURRENCES,
    Occurrence,
    ends_block,
    is_block,
    leaves_a_trace,
    occurrences_by_document,
    occurrences_of,
    truncated_at_edges,
)
from ragbias.boundaries.metadata_blocks import with_metadata
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.recognisers import Segmenter, below_headers, check_segmenter, in_one_message, segment
from ragbias.boundaries.sources import KnownText, Registry, Retrieval, current_documents, document_texts, fields_of
from ragbias.boundaries.splitting import split
from ragbias.boundaries.text import CharSpan, elements
from ragbias.errors import AmbiguousSegmentsError, WrongTypeError

NOTHING_KNOWN = "no documents were given, and none were retrieved recently"
NOTHING_RECOGNISED = (
    "no documents were given, and no recently retrieved one was recognised; the prompt must contain them verbatim"
)
NUMBERING_FIELDS = ("index", "idx", "position", "rank", "metadata")  # which may number the documents, or contain these
TRACED = {
    "documents": "given explicitly",
    "artifact": "carried by tool messages",
    "run": "retrieved in this run",
    "segmenter": "given by the segmenter",
}


@dataclass(frozen=True)
class Boundaries:
    """Where the documents of a prompt are.

    Attributes:
        spans: ``(begin, end)`` of each document in characters of the prompt, ascending, never overlapping. A document
            includes its known metadata around the text (``Title: ...``, ``Source: ...``).
        source: ``"documents"`` (given explicitly), ``"artifact"`` (carried by tool messages), ``"run"`` (retrieved in
            the same run), ``"registry"`` (retrieved recently), ``"segmenter"`` (found by the user's own segmenter),
            ``"headers"`` (found by their numbered headers), or ``"none"``.
        n_expected: number of documents that this source named; for the registry, those of a retrieval that are in the
            prompt; for headers, the number found; for a segmenter, the number found in one message, or more if
            another source knows of more in the prompt; if nothing was found, the number that the first source named.
        reason: which documents were not found and why; empty if all were. Never contains text of a document.
        n_left_plain: number of retrieved documents in the prompt that are not among these: from earlier turns or
            other retrievals, or quoted.
        n_untreated: number of documents of this run or its tool messages that occur only as plain text.
        n_absent: number of expected documents of which no part is in the prompt.
        texts: spans of the documents' texts without their metadata; empty if no source knows the texts.
        metadata: for each document, its known metadata as printed; empty if none is known.
        numbering: as in ``ragbias.generation.report.Report``; set when the prompt is split.
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
    numbering: Literal["", "kept", "stripped"] = ""

    @property
    def n_found(self) -> int:
        """Number of documents found."""
        return len(self.spans)


def locate(
    text: str,
    *,
    documents: Sequence[str] | None = None,
    artifacts: Sequence[Sequence[str]] = (),
    run: Sequence[Sequence[str]] = (),
    registry: Registry | None = None,
    segmenter: Segmenter | None = None,
    not_documents: Sequence[str] = (),
) -> Boundaries:
    """Find the retrieved documents in a prompt. The first source with a document in the prompt counts.

    Documents are found verbatim and in full, also stripped or escaped as in a printed list. For the first three
    sources, a formatter may have joined the lines of all documents, or cut all to one length. One document at each edge
    of the context may also be truncated, if half of it and 40 characters remain.

    In a conversation, the last message with documents counts; documents of earlier messages are left plain and counted.
    If that message is unclear, nothing is found, and ``reason`` says so. Where all sources fail, numbered headers
    (``Document [1](Title: ...)``) are recognised.

    Args:
        text: the prompt as the model gets it, with its chat template.
        documents: the documents; by default those of the ``ragbias.documents`` block around this code. An empty list
            means that there are none.
        artifacts: the documents in the artifacts of tool messages, a list of texts for each message, the latest first.
        run: the retrievals of the run that this request belongs to, a list of texts for each, the latest first.
        registry: recent retrievals.
        segmenter: finds documents that the sources above do not know or cannot separate. A string is a separator
            before, between and after the documents; text before the first and after the last one is left plain. A
            compiled pattern matches a document, or captures it as group 1. A function takes the prompt and returns a
            list of ``(begin, end)`` in characters, ascending and apart, or a list of texts that occur in it.
        not_documents: texts of the prompt, such as system messages, in which documents of a process-wide registry are
            not searched.

    Raises:
        WrongTypeError: the text is not a string, or documents are not texts.
        SegmenterError: the segmenter has the wrong type, failed, or returned invalid spans.
    """
    if not isinstance(text, str):
        raise WrongTypeError(f"a prompt is a string, got {type(text).__name__}")
    if segmenter is not None:
        check_segmenter(segmenter)
    if documents is None:
        documents = current_documents()
    if documents is not None and not documents:
        return Boundaries((), "documents", 0, "an empty list of documents was given")
    named = {"documents": [] if documents is None else [documents], "artifact": artifacts, "run": run}
    retrievals = {source: [texts for texts in map(document_texts, lists) if texts] for source, lists in named.items()}
    known = of_run = occurrences_by_document(text, chain.from_iterable(chain.from_iterable(retrievals.values())))
    remembered = _known_in(text, registry, not_documents) if registry is not None else {}
    candidates = [] if registry is None else registry.candidates()
    recent = [retrieval for retrieval in candidates if not remembered.keys().isdisjoint(retrieval)]
    others = [*retrievals["artifact"], *retrievals["run"], *recent]
    for source in ("artifact", "run"):
        retrievals[source] = [retrieval for retrieval in retrievals[source] if not _joins(retrieval, others)]
    found: Boundaries | None = None
    missed: list[Boundaries] = []
    for source, of_source in retrievals.items():
        if of_source and found is None:
            result = _by_retrievals(text, of_source, of_run, source)
            found = result if result.source != "none" else None
            missed += [] if found else [result]
    if registry is not None:
        known = of_run if registry.process_wide else {**of_run, **remembered}
        found = found or _by_registry(text, [texts for texts in recent if not _joins(texts, others)], remembered)
    if segmenter is not None and not (found and found.n_found == found.n_expected and _are_apart(text, found)):
        given = _by_segmenter(text, segmenter)
        if found is not None:
            found = _better(text, found, given, len(documents or ()))
        elif given.spans:
            found = given
        else:
            missed.append(given)
    if found is None:
        spans, doubt = below_headers(text)
        n_expected = len(spans) or next((result.n_expected for result in missed if result.n_expected), 0)
        found = Boundaries(tuple(spans), "headers" if spans else "none", n_expected, doubt)
    reason = "; ".join(result.reason for result in (*missed, found) if result.reason)
    if not (found.spans or reason):
        reason = NOTHING_RECOGNISED if registry else NOTHING_KNOWN
    untreated = {name: some for name, some in of_run.items() if not any(o.is_in(found.spans) for o in some)}
    return replace(
        found,
        reason=reason,
        n_left_plain=n_outside(text, known, found.spans),
        n_untreated=n_outside(text, untreated, found.spans) if documents is None else 0,
    )


def _by_retrievals(text: str, retrievals: Sequence[Retrieval], known: Known, source: str) -> Boundaries:
    """The latest retrieval in the last message, with others beside it; without spans if they are ambiguous."""
    every = set(chain.from_iterable(retrievals))
    known = {document: found for document, found in known.items() if document in every}
    if any(is_long(document) and len(found) >= MAX_OCCURRENCES for document, found in known.items()):
        return Boundaries((), source, len(known), UNCLEAR)
    here = in_last_message(text, known)
    if here is None:
        return Boundaries((), source, len(known), UNCLEAR)
    if any(isinstance(document, KnownText) for document in every):  # then a list of strings may hold the questions
        retrievals = [
            texts for texts in retrievals if here.keys() >= set(texts) or any(isinstance(t, KnownText) for t in texts)
        ]
    touched = [retrieval for retrieval in retrievals if not here.keys().isdisjoint(retrieval)]
    if not touched:
        count = _merged(retrievals).total()
        reason = f"none of the {count} documents {TRACED[source]} appears verbatim in the prompt"
        return Boundaries((), "none", count, reason)
    present = {occurrence.document for occurrence in outermost(text, here)}  # not those inside other documents
    wanted = _merged([touched[0], *([name for name in retrieval if name in present] for retrieval in touched[1:])])
    occurrences = assigned(text, list(wanted.elements()), here)
    if occurrences is None or any(occurrence.doubtful for occurrence in occurrences):
        return Boundaries((), source, wanted.total(), UNCLEAR)
    fields = fields_of(chain.from_iterable(touched))
    about = [fields.get(occurrence.document, {}) for occurrence in occurrences]
    texts = [occurrence.span for occurrence in occurrences]
    try:
        in_elements = elements(text, texts) is not texts  # which contain the metadata
        spans = texts if in_elements else with_metadata(text, texts, about) or texts
    except AmbiguousSegmentsError as error:
        return Boundaries((), source, wanted.total(), str(error))
    missing = wanted - Counter(occurrence.document for occurrence in occurrences)
    truncated: list[Occurrence] = []
    if source == "registry":  # every text is in the prompt, some inside those found
        missing &= Counter({name: _n_not_within(occurrences_of(text, name), spans) for name in missing})
        n_lost = 0
    else:
        if source != "segmenter":
            truncated = truncated_at_edges(text, occurrences, list(missing.elements()))
        missing -= Counter(occurrence.document for occurrence in truncated)
        n_lost = sum(count for name, count in missing.items() if name not in known)
    ordered = sorted([*occurrences, *truncated])
    n_absent = 0
    if missing:
        edges = [0, *chain.from_iterable(occurrence.span for occurrence in ordered), len(text)]
        outside = "\0".join(text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True))
        n_absent = sum(name not in known and not leaves_a_trace(outside, name) for name in missing.elements())
    one_by_design = len(ordered) == 1 and n_absent == missing.total() and source in ("artifact", "run")
    reasons = []
    if n_lost and not one_by_design:  # such as in a grader
        reasons.append(
            f"{n_lost} of the {wanted.total()} documents {TRACED[source]} do not appear verbatim in the prompt"
        )
    if n_apart := missing.total() - n_lost:
        reasons.append(f"{n_apart} are apart from the others and stay plain text")
    if truncated:
        reasons.append(f"{len(truncated)} are cut off at the edge of the context")
    metadata = [
        tuple(text for name, texts in printed.items() if name.split("!")[0] not in NUMBERING_FIELDS for text in texts)
        for printed in (fields.get(occurrence.document, {}) for occurrence in ordered)
    ]
    return Boundaries(
        tuple(sorted([*spans, *(occurrence.span for occurrence in truncated)])),
        source,
        len(ordered) + missing.total(),
        "; ".join(reasons),
        n_absent=n_absent,
        texts=tuple(occurrence.span for occurrence in ordered),
        metadata=tuple(metadata) if any(metadata) else (),
    )


def _joins(retrieval: Retrieval, others: Sequence[Retrieval]) -> bool:
    """Whether a retrieval is one text that mostly joins texts of other retrievals, such as LlamaIndex nodes."""
    if len(set(retrieval)) > 1:
        return False
    joined = retrieval[0]
    parts = {text for other in others if joined not in other for text in other if is_long(text) and text in joined}
    found = outermost(joined, occurrences_by_document(joined, parts))
    half = sum(occurrence.end - occurrence.begin for occurrence in found) >= COVERAGE * len(joined)
    return half and len({occurrence.document for occurrence in found}) > 1 and is_uniform(joined, found)


def _merged(retrievals: Iterable[Iterable[str]]) -> Counter[str]:
    """Count of each text: the highest among the retrievals."""
    merged: Counter[str] = Counter()
    for retrieval in retrievals:
        merged |= Counter(retrieval)
    return merged


def _known_in(text: str, registry: Registry, not_documents: Sequence[str]) -> Known:
    """Occurrences of remembered texts outside ``not_documents``."""
    known = occurrences_by_document(text, registry.likely_in(text), strict=True)
    if not registry.process_wide:
        return known
    excluded = [occurrence for other in not_documents if other.strip() for occurrence in occurrences_of(text, other)]
    free = {name: [o for o in found if not any(map(o.overlaps, excluded))] for name, found in known.items()}
    return {document: found for document, found in free.items() if found}


def _by_registry(text: str, candidates: Sequence[Retrieval], known: Known) -> Boundaries | None:
    """The latest remembered retrieval in the prompt, unless it is only words of the question."""
    if not any(map(is_long, known)):
        return None
    every = set(chain.from_iterable(candidates))
    firm: dict[str, list[Occurrence]] = {document: [] for document in known if document in every}
    for occurrence in outermost(text, {document: known[document] for document in firm}):
        firm[occurrence.document].append(occurrence)
    firm = {document: found for document, found in firm.items() if found}
    names = {document for document in firm if is_long(document)}
    retrievals = [
        tuple(name for name in retrieval if name in known or (is_long(name) and occurrences_of(text, name)))
        for retrieval in candidates
        if not names.isdisjoint(retrieval)
    ]
    found = _by_retrievals(text, retrievals, firm, "registry")
    occurrences = [Occurrence(*span, "") for span in found.spans]
    is_whole = is_block if len(occurrences) == 1 else ends_block
    return found if not occurrences or any(is_whole(text, occurrence) for occurrence in occurrences) else None


def _n_not_within(occurrences: Iterable[Occurrence], spans: Sequence[CharSpan]) -> int:
    return sum(not any(begin <= o.begin and o.end <= end for begin, end in spans) for o in occurrences)


def _by_segmenter(text: str, segmenter: Segmenter) -> Boundaries:
    given = segment(text, segmenter)
    if texts := [text for text in given if isinstance(text, str)]:
        found = _by_retrievals(text, [tuple(texts)], occurrences_by_document(text, texts), "segmenter")
        return found if found.spans else replace(found, source="none")
    spans = [span for span in given if not isinstance(span, str)]
    if not spans:
        return Boundaries((), "none", 0, "the segmenter found no documents")
    together = in_one_message(text, spans)
    apart = len(spans) - len(together)
    reason = f"{apart} are in another message and stay plain text" if apart else ""
    return Boundaries(tuple(together), "segmenter", len(together), reason)


def _better(text: str, found: Boundaries, given: Boundaries, n_named: int) -> Boundaries:
    """The segmenter's documents (``given``), if they are more, or if only they can be split; else the source's."""
    ours, theirs = (_are_apart(text, result) for result in (given, found))
    if ours < theirs or (ours == theirs and given.n_found <= found.n_found) or not given.spans:
        return found
    n_expected = max(n_named, found.n_found or found.n_expected)
    if given.n_found >= n_expected:
        return given
    reasons = (found.reason, given.reason, f"the segmenter found {given.n_found} of {n_expected}")
    return replace(given, n_expected=n_expected, reason="; ".join(filter(None, reasons)))


def _are_apart(text: str, found: Boundaries) -> bool:
    """Whether the prompt can be split at these documents, with or without numbers."""
    if not found.spans:
        return False
    numbers = find_numbering(text, found.texts or found.spans, found.metadata)
    for strip in (False, True):
        try:
            split(text, found.spans, numbers, strip)
        except AmbiguousSegmentsError:
            continue
        return True
    return False
