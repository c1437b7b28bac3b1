"""Finding the documents of a prompt: the sources that may know them are asked in turn, each verified verbatim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

from ragbias.boundaries.known_text import fields_of
from ragbias.boundaries.matching.assignment import assign
from ragbias.boundaries.matching.occurrences import Occurrence, occurrences_by_document
from ragbias.boundaries.matching.truncated import leaves_a_trace, truncated_at_edges
from ragbias.boundaries.sources import numbered_headers, registry_search
from ragbias.boundaries.sources import segmenter as user_segmenter
from ragbias.boundaries.sources.named import current_documents, document_texts
from ragbias.boundaries.sources.registry import Registry, Retrieval
from ragbias.boundaries.sources.segmenter import Segmenter
from ragbias.boundaries.spans import Span, loosened, looseness
from ragbias.boundaries.splitting.context_selection import ContextSelection, select_context
from ragbias.boundaries.splitting.current_turn import current_turn
from ragbias.boundaries.splitting.headers_and_separators import with_headers
from ragbias.boundaries.splitting.numbering import find_numbering
from ragbias.boundaries.splitting.outermost import n_outside
from ragbias.boundaries.splitting.segments import segments
from ragbias.errors import AmbiguousSegmentsError, WrongTypeError

Occurrences = Mapping[str, list[Occurrence]]  # by document, the longest first
NOTHING_KNOWN = "no documents were given, and none retrieved lately"
NOTHING_RECOGNISED = (
    "no documents were given, and of those retrieved lately none was recognised in the prompt, where they have to "
    "stand word for word"
)
SOURCE_IN_WORDS = {
    "documents": "given explicitly",
    "artifact": "carried by tool messages",
    "run": "retrieved in this run",
    "segmenter": "given by the segmenter",
}


@dataclass(frozen=True)
class Boundaries:
    """Where the documents of a prompt are.

    Attributes:
        spans: ``(begin, end)`` of each document in characters of the prompt, ascending, never overlapping. What is
            around a text and made of its own metadata (``Title: ...``, ``Source: ...``) is part of its document.
        source: ``"documents"`` (given explicitly), ``"artifact"`` (carried by tool messages), ``"run"`` (retrieved in
            the same run), ``"registry"`` (retrieved lately), ``"segmenter"`` (found by the user's own segmenter),
            ``"headers"`` (found by their numbered headers), or ``"none"``.
        n_expected: number of documents that this source named; for the registry, as many of a retrieval as are in the
            prompt; for headers, the number found; for a segmenter, the number found in one message, or more where
            another source knows of more in the prompt; where nothing was found, the number that the first source named.
        reason: in plain words, what was not found and why; empty if all was. Never text of a document.
        n_left_plain: number of retrieved documents that are in the prompt but not among these: of earlier turns or
            other retrievals, or quoted.
        n_untreated: number of documents of this run or its tool messages that are only left plain.
        n_absent: number of the expected documents of which the prompt holds no part.
        texts: the documents' texts alone, where the spans hold more and it is known; else empty.
        metadata: of each document, how its known metadata are printed; empty if none are known.
        numbering: as in ``ragbias.generation.report.Report``; set when the prompt is split.
    """

    spans: tuple[Span, ...]
    source: str
    n_expected: int
    reason: str
    n_left_plain: int = 0
    n_untreated: int = 0
    n_absent: int = 0
    texts: tuple[Span, ...] = field(default=(), repr=False)
    metadata: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    numbering: Literal["", "kept", "stripped"] = ""

    @property
    def n_found(self) -> int:
        """Number of documents found."""
        return len(self.spans)


class _SourceResult(NamedTuple):
    """What a source led to. If it names the source but no spans, the source knows documents of this prompt, but they
    cannot be told from the text around them."""

    found: Boundaries
    n_in_message: int = 0  # number of such documents


def locate(
    text: str,
    *,
    documents: Sequence[str] | None = None,
    artifacts: Sequence[Sequence[str]] = (),
    run: Sequence[Sequence[str]] = (),
    registry: Registry | None = None,
    segmenter: Segmenter | None = None,
    include_headers: bool = False,
    not_documents: Sequence[str] = (),
) -> Boundaries:
    """Find the retrieved documents in a prompt. The first source of which a document occurs in the prompt wins.

    Documents are found verbatim and in full, also stripped or escaped as in a printed list. Only of the sources that
    name this prompt's own documents (the first three), one that was truncated at each edge of the context is accepted
    too, if at least half of it and 40 characters are left.

    A conversation may hold documents of earlier turns, and quotes. Those of the latest retrieval are this turn's, where
    they are in the prompt for the last time, not quoted; all others are left plain and counted. If this cannot be told,
    nothing is found, and the reason says so.

    Args:
        text: the prompt as the model gets it, chat template applied.
        documents: the documents, if they are known; default: those of the ``ragbias.documents`` block around this code.
            An empty list says that there are none.
        artifacts: the documents in the artifacts of tool messages, a list of texts for each message, the latest first.
        run: what was retrieved in the run that this request belongs to, a list of texts for each retrieval, the latest
            first.
        registry: what was retrieved lately.
        segmenter: how to find documents that no source above knows. A string is a separator before, between and after
            the documents; what is before the first and after the last one is left as plain text. A compiled pattern
            matches a document, or has it as its group 1. A function gets the prompt and gives a list of
            ``(begin, end)`` in characters, ascending and apart, or a list of texts that occur in it.
        include_headers: let each span begin at the header that precedes the document and belongs to it, be it a number,
            a title, or lines of metadata. ``Prompt.from_text`` puts headers to their documents either way.
        not_documents: texts of the prompt, such as system messages, in which a registry of all that anyone retrieved
            (``Registry.process_wide``) finds nothing.

    Last of all, documents are found by numbered headers, see ``ragbias.boundaries.sources.numbered_headers``.

    Raises:
        WrongTypeError: the text is not a string, or documents are not texts.
        SegmenterError: the segmenter is of the wrong kind, failed, or gave spans that make no sense.
    """
    if not isinstance(text, str):
        raise WrongTypeError(f"a prompt is a string, got {type(text).__name__}")
    if segmenter is not None:
        user_segmenter.check(segmenter)
    if documents is None:
        documents = current_documents()
    if documents is not None and not documents:
        return Boundaries((), "documents", 0, "an empty list of documents was given")
    searches: dict[str, Callable[[], _SourceResult]] = {}
    given = () if documents is None else (documents,)
    sources = {"documents": given, "artifact": artifacts, "run": run}
    named = {source: [texts for texts in map(document_texts, each) if texts] for source, each in sources.items()}
    known = occurrences_by_document(text, chain.from_iterable(chain.from_iterable(named.values())))
    for source, retrievals in named.items():
        if retrievals:
            searches[source] = partial(_by_texts, text, retrievals, known, source)
    of_run = known
    if registry is not None:
        remembered = registry_search.known_in(text, registry, not_documents)
        searches["registry"] = partial(_by_registry, text, registry, remembered)
        known = known if registry.process_wide else known | remembered
    if segmenter is not None:
        searches["segmenter"] = partial(_by_segmenter, text, segmenter)
    found = _first_found(text, searches, len(documents or ()), include_headers)
    if not (found.spans or found.reason):
        found = replace(found, reason=NOTHING_RECOGNISED if registry else NOTHING_KNOWN)
    return replace(
        found,
        n_left_plain=n_outside(text, known, found.spans),
        n_untreated=n_outside(text, _untreated(of_run, found.spans), found.spans) if not given else 0,
    )


def _untreated(known: Occurrences, spans: Sequence[Span]) -> Occurrences:
    """The documents that are in none of the spans."""
    return {document: found for document, found in known.items() if not any(each.is_in(spans) for each in found)}


def _first_found(
    text: str, searches: Mapping[str, Callable[[], _SourceResult]], n_given: int, include_headers: bool
) -> Boundaries:
    """What the first source finds that finds any; where none does, what the numbered headers show.

    Args:
        text: the prompt.
        searches: by source, in the order in which they are asked.
        n_given: number of documents that were given explicitly.
        include_headers: as in ``locate``.
    """
    misses: list[str] = []
    n_expected = 0
    ambiguous: _SourceResult | None = None  # from then on, only the user's segmenter knows more
    incomplete: Boundaries | None = None  # likewise: some documents are missing, or they cannot be told apart
    for source, search in searches.items():
        if (ambiguous or incomplete) and source != "segmenter":
            continue
        result = search()
        found = result.found
        if found.spans and "segmenter" in searches and source != "segmenter" and not _is_whole(text, found):
            incomplete = found
            continue
        if incomplete and not _is_better(text, found, incomplete):
            return _finished(text, incomplete, misses, include_headers)
        if found.spans:
            if source == "segmenter":
                n_known = max(
                    ambiguous.n_in_message if ambiguous else 0, incomplete.n_found if incomplete else 0, n_given
                )
                found = _of_at_least(found, n_known)
                misses += [incomplete.reason] if incomplete else []
            return _finished(text, found, misses, include_headers)
        if found.source != "none":
            ambiguous = result
        n_expected = n_expected or found.n_expected
        if found.reason:
            misses.append(found.reason)
    if ambiguous:
        return replace(ambiguous.found, reason="; ".join(misses))
    return _by_numbered_headers(text, misses, n_expected, include_headers)


def _is_whole(text: str, found: Boundaries) -> bool:
    """Whether a source left nothing for the user's segmenter to do."""
    return found.n_found == found.n_expected and _are_apart(text, found)


def _is_better(text: str, found: Boundaries, incomplete: Boundaries) -> bool:
    """Whether a segmenter found more documents than the source before it, or documents that can be told apart."""
    if _are_apart(text, found) != _are_apart(text, incomplete):
        return found.n_found > 0 and _are_apart(text, found)
    return found.n_found > incomplete.n_found


def _are_apart(text: str, found: Boundaries) -> bool:
    """Whether the prompt can be split at these documents, their numbers aside."""
    if not found.spans:
        return False
    numbering = find_numbering(text, found.texts or found.spans, found.metadata)
    loose = looseness(found.spans)
    for without in {False, bool(numbering.cuts)}:
        rest, spans = numbering.stripped(text, found.spans) if without else (text, found.spans)
        try:
            segments(rest, loosened(spans, loose))
        except AmbiguousSegmentsError:
            continue
        return True
    return False


def _by_texts(text: str, retrievals: Sequence[Retrieval], known: Occurrences, source: str) -> _SourceResult:
    """The documents of which a source names the texts."""
    every = set(chain.from_iterable(retrievals))
    known = {document: found for document, found in known.items() if document in every}
    turn = current_turn(text, retrievals, known)
    documents = turn.documents
    if turn.doubt:
        return _SourceResult(Boundaries((), source, len(documents), turn.doubt), len(known))
    occurrences = assign(text, documents, turn.known)
    context = select_context(text, occurrences, fields_of(documents), lenient=source in ("documents", "segmenter"))
    if context.n_ambiguous:
        return _ambiguous(context, source, len(documents))
    missing = Counter(documents) - Counter(each.document for each in occurrences)
    truncated = []
    if source != "segmenter":
        truncated = truncated_at_edges(text, context.occurrences, list(missing.elements()))
    spans = sorted([*context.spans, *(each.span for each in truncated)])
    named = f"the {len(documents)} documents {SOURCE_IN_WORDS[source]}"
    if not spans:
        return _SourceResult(Boundaries((), "none", len(documents), f"none of {named} appears verbatim in the prompt"))
    reasons = []
    missing -= Counter(each.document for each in truncated)
    elsewhere = sum(count for document, count in missing.items() if document in known)
    if lost := missing.total() - elsewhere:
        reasons.append(f"{lost} of {named} do not appear verbatim in the prompt")
    if apart := len(occurrences) + len(truncated) - len(spans) + elsewhere:
        reasons.append(f"{apart} are apart from the others and were left as plain text")
    if truncated:
        reasons.append(f"{len(truncated)} cut off at the edge of the context")
    absent = sum(document not in known and not leaves_a_trace(text, document) for document in missing.elements())
    found = Boundaries(tuple(spans), source, len(documents), "; ".join(reasons), n_absent=absent)
    return _SourceResult(_with_texts(found, [*context.occurrences, *truncated], documents))


def _by_registry(text: str, registry: Registry, known: Occurrences) -> _SourceResult:
    context, n_apart, doubt = registry_search.find(text, registry, known)
    if context.n_ambiguous:
        return _ambiguous(context, "registry", context.n_in_message, doubt)
    count = len(context.spans)
    reason = f"{n_apart} of the same retrieval are apart from the others and were left as plain text" if n_apart else ""
    found = Boundaries(tuple(context.spans), "registry" if count else "none", count + n_apart, reason)
    return _SourceResult(_with_texts(found, context.occurrences, [each.document for each in context.occurrences]))


def _with_texts(found: Boundaries, occurrences: Iterable[Occurrence], documents: Iterable[str]) -> Boundaries:
    """What was found, with the documents' texts alone and their metadata."""
    fields, ordered = fields_of(documents), sorted(occurrences)
    metadata = tuple(tuple(chain.from_iterable(fields.get(each.document, {}).values())) for each in ordered)
    return replace(found, texts=tuple(each.span for each in ordered), metadata=metadata if any(metadata) else ())


def _by_segmenter(text: str, segmenter: Segmenter) -> _SourceResult:
    given = user_segmenter.find(text, segmenter)
    if texts := [each for each in given if isinstance(each, str)]:
        found = _by_texts(text, [tuple(texts)], occurrences_by_document(text, texts), "segmenter").found
        return _SourceResult(found if found.spans else replace(found, source="none"))
    spans = [each for each in given if not isinstance(each, str)]
    if not spans:
        return _SourceResult(Boundaries((), "none", 0, "the segmenter found no documents"))
    together = user_segmenter.in_one_message(text, spans)
    apart = len(spans) - len(together)
    reason = f"{apart} are in another message and were left as plain text" if apart else ""
    return _SourceResult(Boundaries(tuple(together), "segmenter", len(together), reason))


def _by_numbered_headers(text: str, misses: Sequence[str], n_expected: int, include_headers: bool) -> Boundaries:
    documents, doubt = numbered_headers.find(text)
    if documents:
        spans = tuple((each.header_begin if include_headers else each.begin, each.end) for each in documents)
        texts = tuple(each.span for each in documents)
        return Boundaries(spans, "headers", len(spans), "; ".join(misses), texts=texts)
    reason = "; ".join(filter(None, [*misses, doubt]))
    return Boundaries((), "none", n_expected, reason)


def _ambiguous(context: ContextSelection, source: str, n_expected: int, doubt: str = "") -> _SourceResult:
    count = context.n_in_message
    reason = doubt or (
        f"{count} documents are in the prompt, but {context.n_ambiguous} of them cannot be told from the text around "
        "them, so the order of all would count; put nothing but its own metadata around each, and one separator "
        "between them"
    )
    return _SourceResult(Boundaries((), source, n_expected, reason), count)


def _of_at_least(found: Boundaries, n_expected: int) -> Boundaries:
    """What the segmenter found, where it is known how many documents there are."""
    if found.n_found >= n_expected:
        return found
    reasons = filter(None, (found.reason, f"the segmenter found {found.n_found} of {n_expected}"))
    return replace(found, n_expected=max(n_expected, found.n_expected), reason="; ".join(reasons))


def _finished(text: str, found: Boundaries, misses: Sequence[str], include_headers: bool) -> Boundaries:
    """What was found, with the reasons why it was not found before, and with its headers if these are wanted."""
    spans, reasons = found.spans, [*misses, found.reason]
    if include_headers:
        try:
            found = replace(found, spans=with_headers(text, spans), texts=found.texts or spans)
        except AmbiguousSegmentsError:
            reasons.append("headers were left out, since the first one cannot be told from the text before it")
    return replace(found, reason="; ".join(filter(None, reasons)))
