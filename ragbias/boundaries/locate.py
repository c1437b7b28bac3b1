"""The documents' places in a prompt: a chain of sources, each verified verbatim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ragbias.boundaries import registered
from ragbias.boundaries.context import current_documents, document_texts
from ragbias.boundaries.occurrences import Hit
from ragbias.boundaries.placement import place, places
from ragbias.boundaries.registry import Registry
from ragbias.boundaries.runs import best_run, split_runs
from ragbias.boundaries.truncated import at_edges

NAMES = {
    "documents": "given explicitly",
    "artifact": "carried by tool messages",
    "run": "retrieved in this run",
}


@dataclass(frozen=True)
class Boundaries:
    """Where the documents of a prompt stand.

    Attributes:
        spans: ``(begin, end)`` of each document in characters of the prompt, ascending, never overlapping.
        source: ``"documents"`` (given explicitly), ``"artifact"`` (carried by tool messages), ``"run"`` (retrieved in
            the same run), ``"registry"`` (retrieved lately), or ``"none"``.
        n_expected: number of documents that this source named; for the registry, the number found; where nothing was
            found, the number that the first source named.
        n_found: number of documents found, the length of ``spans``.
        reason: in plain words, what was not found and why; empty if all was. Never text of a document.
    """

    spans: tuple[tuple[int, int], ...]
    source: str
    n_expected: int
    n_found: int
    reason: str


def locate(
    text: str,
    *,
    documents: Sequence[str] | None = None,
    artifacts: Iterable[str] | None = None,
    run: Iterable[str] | None = None,
    registry: Registry | None = None,
) -> Boundaries:
    """Find the retrieved documents in a prompt. The first source of which a document stands in the prompt wins.

    Documents are found verbatim and in full, also stripped or escaped as in a printed list. Only of the sources that
    name this prompt's own documents (all but the registry), one that was cut at the edge of the context is accepted
    too, if at least half of it and 40 characters are left.

    Args:
        text: the prompt as the model gets it, chat template applied.
        documents: the documents, if they are known; default: those of the ``ragbias.documents`` block around this code.
            An empty list says that there are none.
        artifacts: texts of the documents in the artifacts of tool messages.
        run: texts retrieved in the run that this request belongs to.
        registry: what was retrieved lately, by anyone.
    """
    if documents is None:
        documents = current_documents()
    if documents is not None and not documents:
        return Boundaries((), "documents", 0, 0, "an empty list of documents was given")
    misses: list[str] = []
    expected = 0
    sources = {"documents": documents, "artifact": artifacts, "run": run}
    for source, named in sources.items():
        texts = document_texts(named) if named is not None else ()
        if not texts:
            continue
        found = _named(text, texts, source)
        if found.spans:
            return _with_misses(found, misses)
        expected = expected or len(texts)
        misses.append(f"none of the {len(texts)} documents {NAMES[source]} stands verbatim in the prompt")
    if registry is not None:
        run_found = registered.find(text, registry)
        if run_found:
            return _with_misses(Boundaries(_spans(run_found), "registry", len(run_found), len(run_found), ""), misses)
    return Boundaries(
        (), "none", expected, 0, "; ".join(misses) or "no documents were given, and none retrieved lately"
    )


def _named(text: str, named: Sequence[str], source: str) -> Boundaries:
    hits = place(text, named, places(text, named))
    run = best_run(split_runs(text, hits, lenient=source == "documents"))
    missing = Counter(named) - Counter(hit.document for hit in hits)
    cut = at_edges(text, run, list(missing.elements()))
    run = sorted([*run, *cut])
    reasons = []
    lost = missing.total() - len(cut)
    if lost:
        reasons.append(f"{lost} of the {len(named)} documents {NAMES[source]} do not stand verbatim in the prompt")
    apart = len(hits) + len(cut) - len(run)
    if apart:
        reasons.append(f"{apart} stand apart from the others and were left as plain text")
    if cut:
        reasons.append(f"{len(cut)} cut off at the edge of the context")
    return Boundaries(_spans(run), source, len(named), len(run), "; ".join(reasons))


def _with_misses(found: Boundaries, misses: Sequence[str]) -> Boundaries:
    reason = "; ".join(part for part in (*misses, found.reason) if part)
    return Boundaries(found.spans, found.source, found.n_expected, found.n_found, reason)


def _spans(run: Sequence[Hit]) -> tuple[tuple[int, int], ...]:
    return tuple((hit.begin, hit.end) for hit in run)
