"""The documents located in a prompt, and the check for missing documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from ragbias.boundaries import Boundaries, Source
from ragbias.boundaries.sources import current_documents
from ragbias.boundaries.splitting import STRIPPING_HELPS
from ragbias.call_site import WarnedLines
from ragbias.errors import DocumentNotFoundError, MissingDocumentsWarning, NoDocumentsError
from ragbias.limits import OnMissing

if TYPE_CHECKING:  # a listener needs only ``LocatedDocuments``
    from ragbias.generation import Report, Request

CERTAIN: Collection[Source] = ("documents", "artifact", "run", "segmenter")  # others may belong to another prompt
EXPLICIT: Collection[Source] = ("documents", "segmenter")  # all their documents must occur in the prompt


@dataclass(frozen=True)
class LocatedDocuments:
    """The documents in a prompt, and how to check for missing documents.

    Attributes:
        warn_at_end: functions to call at the end of the run if it retrieved no documents. ``None`` means that warnings
            are issued at once: outside a run, or if retrievals may not have been recorded.
        must_be_complete: whether missing documents are a mistake.
    """

    boundaries: Boundaries
    warn_at_end: list[Callable[[], None]] | None = None
    must_be_complete: bool = True


@dataclass
class MissingDocuments:
    """Check a model's requests for missing documents. Warn once per call site and reason.

    Args:
        remedy: advice in warnings and errors for users who passed no documents.
        complete: values of ``Report.source``, besides ``EXPLICIT``, for which all documents must occur in the prompt.
    """

    remedy: str
    complete: frozenset[Source] = frozenset()
    _lines: WarnedLines = field(default_factory=WarnedLines, init=False, repr=False)

    def check(
        self,
        request: Request,
        located: LocatedDocuments,
        on_missing: OnMissing,
        documents: Sequence[object] | None = None,
        segmenter: object = None,
    ) -> None:
        """Warn or raise an error if the request's method needs documents and some are missing.

        A single document is accepted if no others are expected, because one document has no order. An empty list
        ``documents=[]`` is accepted too. In a run without documents so far, warnings go to ``located.warn_at_end``.

        Args:
            on_missing: whether to warn, to raise an error, or to do nothing.
            documents: documents of the call; default: the documents of an enclosing ``ragbias.documents`` block.
            segmenter: segmenter of the call, if any.

        Raises:
            NoDocumentsError: with ``on_missing="raise"``, if the plain model would answer.
            DocumentNotFoundError: with ``on_missing="raise"``, if some of the expected documents are missing.
        """
        needs_documents = request.method_requested.needs_documents
        if on_missing == "ignore" or not (needs_documents and located.must_be_complete):
            return
        report = request.report
        n_untreated = request.prompt.boundaries.n_untreated
        explicit = bool(current_documents() if documents is None else documents)
        missing = self._find_missing(request, explicit)
        if n_untreated > 1 and missing != "all":
            self._lines.warn(_explain_untreated(report, n_untreated), MissingDocumentsWarning, "untreated")
        if missing == "none":
            return
        remedy = self._remedy(report, explicit, segmenter is not None)
        message = f"{_explain(report, bool(request.why_plain))}. {remedy}; on_missing='ignore' silences this."
        if on_missing == "raise":
            raise NoDocumentsError(message) if missing == "all" else DocumentNotFoundError(message)
        kind = re.sub(r"\d+", "", report.reason)
        warn = partial(self._lines.warn, message, MissingDocumentsWarning, kind)
        if located.warn_at_end is None or report.n_expected or report.n_found:
            warn()
        else:
            located.warn_at_end.append(warn)

    def _find_missing(self, request: Request, explicit: bool) -> Literal["none", "some", "all"]:
        """Return how many documents are missing for the method. ``"all"`` means that only the plain model can answer.

        ``explicit`` is whether the caller passed documents. If so, documents from a source that is not in ``CERTAIN``
        do not suffice: the result is ``"some"`` rather than ``"none"``.
        """
        report = request.report
        source = report.source
        # a chain may drop some of the retrieved documents, and a step of a chain may use one of them
        must_have_all = source in EXPLICIT or (source in self.complete and report.n_found != 1)
        n_may_be_absent = 0 if must_have_all else request.prompt.boundaries.n_absent
        found_all = source != "none" and report.n_found == report.n_expected - n_may_be_absent
        if request.why_plain and not (found_all and report.n_found < 2):  # one document has no order
            return "all"
        is_certain = source in CERTAIN or not explicit
        return "none" if found_all and is_certain else "some"

    def _remedy(self, report: Report, explicit: bool, segmented: bool) -> str:
        if STRIPPING_HELPS in report.reason:
            return "Pass strip_numbering=True, or change the template"
        if report.source == "segmenter" or (segmented and not explicit):
            return "Let the segmenter find all documents"
        if report.source != "none" and report.n_found in (0, report.n_expected):  # the documents cannot be separated
            return "Change the template, or pass a segmenter= that separates the documents"
        if explicit:
            other = "leave them to the segmenter" if segmented else "a segmenter= that finds them there"
            return f"Pass documents= as they occur in the prompt, or {other}"
        return self.remedy if report.n_expected else f"{self.remedy}, or documents=[] if there are none"


def _explain(report: Report, plain: bool) -> str:
    count = f"{report.n_found} of {report.n_expected} expected documents" if report.n_expected else "none"
    ran = "only the plain model can answer" if plain else "it treats only these"
    but = "but" if 0 < report.n_found == report.n_expected else "so"  # the documents cannot be separated
    reason = f" ({report.reason})" if report.reason else ""
    needs = f"{report.method_requested} needs the retrieved documents"
    return f"{needs}. It located {count} in the prompt, {but} {ran}{reason}"


def _explain_untreated(report: Report, n_untreated: int) -> str:
    return (
        f"{report.method_requested} treats the {report.n_found} documents of the latest retrieval. The order of "
        f"{n_untreated} documents of other retrievals in this run still matters. Retrieve all documents of a turn in "
        "one message or tool call; on_missing='ignore' silences this."
    )
