"""The documents' places in a prompt: a chain of sources, each verified verbatim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from ragbias.boundaries.matching.assignment import place, places
from ragbias.boundaries.matching.occurrences import span_of
from ragbias.boundaries.matching.truncated import at_edges
from ragbias.boundaries.sources import numbered_headers as headers
from ragbias.boundaries.sources import registry_search as from_registry
from ragbias.boundaries.sources import segmenter as segmenting
from ragbias.boundaries.sources.known_text import fields_of
from ragbias.boundaries.sources.named import current_documents, document_texts
from ragbias.boundaries.sources.registry import Registry
from ragbias.boundaries.sources.segmenter import Segmenter
from ragbias.boundaries.splitting.context_selection import standing
from ragbias.boundaries.splitting.headers_and_separators import with_headers
from ragbias.errors import AmbiguousSegmentsError, WrongTypeError

NAMES = {
    "documents": "given explicitly",
    "artifact": "carried by tool messages",
    "run": "retrieved in this run",
    "segmenter": "given by the segmenter",
}


@dataclass(frozen=True)
class Boundaries:
    """Where the documents of a prompt stand.

    Attributes:
        spans: ``(begin, end)`` of each document in characters of the prompt, ascending, never overlapping. What stands
            around a text and is made of its own metadata (``Title: ...``, ``Source: ...``) is part of its document.
        source: ``"documents"`` (given explicitly), ``"artifact"`` (carried by tool messages), ``"run"`` (retrieved in
            the same run), ``"registry"`` (retrieved lately), ``"segmenter"`` (found by the user's own segmenter),
            ``"headers"`` (found by their numbered headers), or ``"none"``.
        n_expected: number of documents that this source named; for the registry and headers, the number found; for a
            segmenter, the number found in one message, or more where another source knows of more in the prompt; where
            nothing was found, the number that the first source named.
        reason: in plain words, what was not found and why; empty if all was. Never text of a document.
    """

    spans: tuple[tuple[int, int], ...]
    source: str
    n_expected: int
    reason: str

    @property
    def n_found(self) -> int:
        """Number of documents found."""
        return len(self.spans)


_Search: TypeAlias = tuple[Boundaries, int]  # what a source led to, and how many of its documents stand in the prompt


def locate(
    text: str,
    *,
    documents: Sequence[str] | None = None,
    artifacts: Iterable[str] | None = None,
    run: Iterable[str] | None = None,
    registry: Registry | None = None,
    segmenter: Segmenter | None = None,
    include_headers: bool = False,
) -> Boundaries:
    """Find the retrieved documents in a prompt. The first source of which a document stands in the prompt wins.

    Documents are found verbatim and in full, also stripped or escaped as in a printed list. Only of the sources that
    name this prompt's own documents (the first three), one that was cut at each edge of the context is accepted too, if
    at least half of it and 40 characters are left. Documents in several messages: those of the one that holds most.

    Args:
        text: the prompt as the model gets it, chat template applied.
        documents: the documents, if they are known; default: those of the ``ragbias.documents`` block around this code.
            An empty list says that there are none.
        artifacts: texts of the documents in the artifacts of tool messages.
        run: texts retrieved in the run that this request belongs to.
        registry: what was retrieved lately, by anyone.
        segmenter: how to find documents that no source above knows. A string is a separator that stands before,
            between and behind the documents; what stands before the first and behind the last one is left as plain
            text. A compiled pattern matches a document, or has it as its group 1. A function gets the prompt and gives
            a list of ``(begin, end)`` in characters, ascending and apart, or a list of texts that stand in it.
        include_headers: let each span begin at the header that stands before the document and belongs to it, be it a
            number, a title, or lines of metadata. ``Prompt.from_text`` puts headers to their documents either way.

    Last of all, documents are found by numbered headers, see ``ragbias.boundaries.sources.numbered_headers``.

    Raises:
        WrongTypeError: the text is not a string, or documents are not texts.
        SegmenterError: the segmenter is of the wrong kind, failed, or gave spans that make no sense.
    """
    if not isinstance(text, str):
        raise WrongTypeError(f"a prompt is a string, got {type(text).__name__}")
    if segmenter is not None:
        segmenting.check(segmenter)
    if documents is None:
        documents = current_documents()
    if documents is not None and not documents:
        return Boundaries((), "documents", 0, "an empty list of documents was given")
    finders: dict[str, Callable[[], _Search]] = {}
    for source, named in {"documents": documents, "artifact": artifacts, "run": run}.items():
        if texts := document_texts(named) if named is not None else ():
            finders[source] = partial(_named, text, texts, source)
    if registry is not None:
        finders["registry"] = partial(_remembered, text, registry)
    if segmenter is not None:
        finders["segmenter"] = partial(_segmented, text, segmenter)
    misses: list[str] = []
    expected = 0
    refused: Boundaries | None = None  # they stand there, but cannot be told apart; then only the user knows more
    standing_there = 0
    for source, find in finders.items():
        if refused is not None and source != "segmenter":
            continue
        found, count = find()
        if found.spans:
            if source == "segmenter":
                found = _of_at_least(found, max(standing_there, len(documents or ())))
            return _finished(text, found, misses, include_headers)
        if found.source != "none":
            refused, standing_there = found, count
        expected = expected or found.n_expected
        misses += [found.reason] if found.reason else []
    if refused is not None:
        return replace(refused, reason="; ".join(misses))
    headed, doubt = headers.find(text)
    if headed:
        spans = tuple((each.header if include_headers else each.begin, each.end) for each in headed)
        return _finished(text, Boundaries(spans, "headers", len(spans), ""), misses, False)
    misses += [doubt] if doubt else []
    return Boundaries((), "none", expected, "; ".join(misses) or "no documents were given, and none retrieved lately")


def _segmented(text: str, segmenter: Segmenter) -> _Search:
    given = segmenting.find(text, segmenter)
    if texts := [each for each in given if isinstance(each, str)]:
        found, count = _named(text, texts, "segmenter")
    else:
        spans = [each for each in given if not isinstance(each, str)]
        together = segmenting.in_one_message(text, spans)
        apart = len(spans) - len(together)
        reason = f"{apart} stand in another message and were left as plain text" if apart else ""
        found, count = Boundaries(tuple(together), "segmenter", len(together), reason), len(spans)
    if not found.spans:
        reason = found.reason if texts else "the segmenter found no documents"
        found = Boundaries((), "none", found.n_expected, reason)
    return found, count


def _of_at_least(found: Boundaries, expected: int) -> Boundaries:
    """What the segmenter found, where it is known how many documents there are."""
    if found.n_found >= expected:
        return found
    reasons = filter(None, (found.reason, f"the segmenter found {found.n_found} of {expected}"))
    return replace(found, n_expected=max(expected, found.n_expected), reason="; ".join(reasons))


def _named(text: str, named: Sequence[str], source: str) -> _Search:
    hits = place(text, named, places(text, named))
    together = standing(text, hits, fields_of(named), lenient=source in ("documents", "segmenter"))
    if together.rest:
        placed = len(together.hits) + together.rest
        return Boundaries((), source, len(named), _apart(together.rest, placed)), placed
    missing = Counter(named) - Counter(hit.document for hit in hits)
    cut = at_edges(text, together.hits, list(missing.elements())) if source != "segmenter" else []
    run = sorted([*together.spans, *map(span_of, cut)])
    if not run:
        reason = f"none of the {len(named)} documents {NAMES[source]} stands verbatim in the prompt"
        return Boundaries((), "none", len(named), reason), 0
    reasons = []
    lost = missing.total() - len(cut)
    if lost:
        reasons.append(f"{lost} of the {len(named)} documents {NAMES[source]} do not stand verbatim in the prompt")
    apart = len(hits) + len(cut) - len(run)
    if apart:
        reasons.append(f"{apart} stand apart from the others and were left as plain text")
    if cut:
        reasons.append(f"{len(cut)} cut off at the edge of the context")
    return Boundaries(tuple(run), source, len(named), "; ".join(reasons)), len(hits)


def _remembered(text: str, registry: Registry) -> _Search:
    together = from_registry.find(text, registry)
    if together.rest:
        placed = len(together.hits) + together.rest
        return Boundaries((), "registry", placed, _apart(together.rest, placed)), placed
    count = len(together.spans)
    return Boundaries(tuple(together.spans), "registry" if count else "none", count, ""), count


def _apart(rest: int, placed: int) -> str:
    return (
        f"{placed} documents stand in the prompt, but {rest} of them cannot be told from the text around them, so the "
        "order of all would count; let nothing but metadata of its own stand around each, and one separator between"
    )


def _finished(text: str, found: Boundaries, misses: Sequence[str], include_headers: bool) -> Boundaries:
    """What was found, with the reasons why it was not found before, and with its headers if these are wanted."""
    spans, reasons = found.spans, [*misses, found.reason]
    if include_headers:
        try:
            spans = with_headers(text, spans)
        except AmbiguousSegmentsError:
            reasons.append("headers were left out, since the first one cannot be told from the text before it")
    return replace(found, spans=spans, reason="; ".join(filter(None, reasons)))
