"""What happens where a method misses the documents it needs: a warning, an error, or nothing but the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from ragbias.boundaries import current_documents
from ragbias.call_site import WarnedLines, warn
from ragbias.errors import DocumentNotFoundError, NoDocumentsError
from ragbias.generation.report import Report
from ragbias.generation.request import Request, reason_to_run_plain

OnMissing = Literal["warn", "raise", "ignore"]
CERTAIN = ("documents", "artifact", "run", "segmenter")  # sources that concern this prompt; all others are guesses
OTHER_TEXTS = "Pass documents= as they occur in the prompt, or a segmenter= that finds them there"
TEXTS_OR_SEGMENTER = "Pass documents= as they occur in the prompt, or leave them to the segmenter"
OTHER_TEMPLATE = "Change the template, or give a segmenter= that tells the documents apart"
ONE_MESSAGE = "Let one turn retrieve all its documents in one message, or call of a tool"
OTHER_SEGMENTER = "Let the segmenter find all documents"


class MissingDocumentsWarning(UserWarning):
    """Documents were retrieved or given, but do not occur in the prompt; or a model that needs some never found any."""


@dataclass
class MissingDocuments:
    """Warns once for each call site, or raises, where a request misses documents; one for each model.

    Args:
        complete: sources of which every document has to occur in the prompt, beside those that the user gives.
        remedy: what the user can do where nothing was given, as a sentence.
    """

    complete: frozenset[str]
    remedy: str
    _lines: WarnedLines = field(default_factory=WarnedLines, init=False, repr=False)
    _content: bool = field(default=False, init=False, repr=False)  # some were found, or the user knows that none were

    def check(
        self,
        request: Request,
        on_missing: OnMissing,
        *,
        documents: Sequence[object] | None = None,
        segmenter: object = None,
        suspected: bool = False,
        at_end: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Judge the request of a method that needs documents.

        A single document that was found is fine, since it has no order, and so is an empty list of documents. A warning
        comes where documents were expected, and, once, where none were as long as none were ever found: the method has
        then never run, and a request without any is no mistake only beside others.

        Args:
            documents: given with the call; ``None``: those of ``ragbias.documents``, if it is open.
            segmenter: the user's, if there is one.
            suspected: there may be documents that nothing names, because what should have seen them failed.
            at_end: takes what is to be called at the end of the run that the request belongs to, whose later requests
                may find documents; ``None`` outside of any.

        Raises:
            NoDocumentsError: with ``on_missing="raise"``, if the method has to run plain.
            DocumentNotFoundError: with ``on_missing="raise"``, if it runs on other documents than those expected.
        """
        report = request.report
        explicit = bool(current_documents() if documents is None else documents)
        complete = self.complete | {"documents", "segmenter"}
        found = request.origin.boundaries
        dropped = 0 if report.source in complete else found.n_absent
        all_found = report.source != "none" and report.n_found == report.n_expected - dropped
        plain = bool(reason_to_run_plain(request.origin.tokens, request.origin.wanted.fewest_documents))
        too_few = plain and not (all_found and report.n_found < 2)
        self._content = self._content or report.n_found > 0
        lost = (report.source in complete and not all_found) or (explicit and report.source not in CERTAIN)
        if on_missing == "ignore":
            return
        if found.n_untreated > 1 and not too_few:
            self._warn_of_untreated(report, found.n_untreated)
        if not (too_few or lost):
            return
        message = f"{_explanation(report, plain)}. {self._remedy(report, explicit, segmenter is not None)}"
        if on_missing == "raise":
            raise NoDocumentsError(message) if too_few else DocumentNotFoundError(message)
        if report.n_expected or report.n_found or suspected:
            self._lines.warn(message, MissingDocumentsWarning, report.source)
        elif not self._content:
            never = partial(self._warn_of_none, report, segmenter is not None)
            (at_end or _at_once)(never)

    def _warn_of_untreated(self, report: Report, n_untreated: int) -> None:
        message = (
            f"{report.method_requested} treats the {report.n_found} documents of the latest retrieval, and left "
            f"{n_untreated} of other retrievals of this run as plain text, so their order still counts. "
            f"{ONE_MESSAGE}; on_missing='ignore' silences this."
        )
        self._lines.warn(message, MissingDocumentsWarning, "untreated")

    def _warn_of_none(self, report: Report, segmented: bool) -> None:
        if self._content:
            return
        self._content = True
        message = (
            f"{report.method_requested} needs the retrieved documents, and this model has never found any documents in "
            f"a prompt, so it runs plain ({report.reason}). {self._remedy(report, False, segmented)}"
        )
        warn(message, MissingDocumentsWarning)

    def _remedy(self, report: Report, explicit: bool, segmented: bool) -> str:
        if report.source == "segmenter" or (segmented and not explicit):
            remedy = OTHER_SEGMENTER
        elif report.source != "none" and report.n_found in (0, report.n_expected):  # they are there, but not apart
            remedy = OTHER_TEMPLATE
        elif explicit:
            remedy = TEXTS_OR_SEGMENTER if segmented else OTHER_TEXTS
        else:
            remedy = self.remedy
        return f"{remedy}; on_missing='ignore' silences this."


def _at_once(judge: Callable[[], None]) -> None:
    judge()


def _explanation(report: Report, plain: bool) -> str:
    count = f"{report.n_found} of {report.n_expected} expected ones" if report.n_expected else "none"
    ran = "it has to run plain" if plain else "it treats only those"
    but = "but" if 0 < report.n_found == report.n_expected else "so"  # they were found, and cannot be told apart
    reason = f" ({report.reason})" if report.reason else ""
    needs = f"{report.method_requested} needs the retrieved documents"
    return f"{needs}, and located {count} in the prompt, {but} {ran}{reason}"
