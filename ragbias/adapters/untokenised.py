"""Requests for models behind a server: documents are found, and ordered, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ragbias.boundaries import Boundaries
from ragbias.errors import MethodError
from ragbias.generation.report import Report
from ragbias.generation.request import Origin, Request, in_parts, reason_to_run_plain
from ragbias.methods import Method, NoMethod, ReorderingMethod
from ragbias.prompt import TokenisedPrompt

NEEDS_A_MODEL = (
    "works inside the model, and this one is elsewhere; use a method that only orders text, such as canonical-order or "
    "long-context-reorder, or none"
)


class _NoModel:
    """Refuses a method that needs the model's attention to rank documents."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def __call__(self, order: Sequence[int]) -> list[float]:
        raise MethodError(f"{self._method.name} {NEEDS_A_MODEL}")

    def contrast(self) -> list[list[float]]:
        raise MethodError(f"{self._method.name} {NEEDS_A_MODEL}")


def check_arranges_text(method: Method) -> None:
    """Raise ``MethodError`` unless a method needs nothing but the texts of the documents."""
    if isinstance(method, ReorderingMethod):
        method.rank([[1], [2], [3]], _NoModel(method))
    elif not isinstance(method, NoMethod):
        raise MethodError(f"{method.name} {NEEDS_A_MODEL}")


def untokenised(prompt: str, boundaries: Boundaries, wanted: Method, strip_numbering: bool = False) -> Request:
    """A request and its report; its tokens are the bytes of the text, its documents in the given order."""
    parts, found, reason, flat = in_parts(prompt, None, boundaries, strip_numbering)
    prefix, *documents, suffix = (
        list(part.encode("utf-8", "replace")) for part in (parts.prefix, *parts.documents, parts.suffix)
    )
    tokens = TokenisedPrompt(prefix, documents, suffix)
    return of_origin(Origin(parts, tokens, flat, wanted, found, reason))


def of_origin(origin: Origin) -> Request:
    """The request for an origin's method."""
    wanted, found = origin.wanted, origin.boundaries
    plain_because = origin.reason or reason_to_run_plain(origin.tokens, wanted.fewest_documents)
    plain_because = plain_because if wanted.needs_documents else ""
    missed = found.reason if wanted.needs_documents or found.n_expected else ""
    report = Report(
        method_requested=wanted.name,
        method_ran="none" if plain_because else wanted.name,
        source=found.source,
        spans=(),
        n_expected=found.n_expected,
        n_found=found.n_found,
        reason="; ".join(filter(None, (plain_because, missed))),
        numbering=found.numbering,
        n_left_plain=found.n_left_plain,
    )
    return Request(origin.tokens, wanted, report, origin)


def arranged(request: Request) -> Request:
    """The request with its documents in the order of its method, which only orders text.

    Raises:
        MethodError: the method needs a model.
    """
    method = request.method
    if not isinstance(method, ReorderingMethod) or request.report.method_ran != method.name:
        return request
    order = method.rank(request.tokens.documents, _NoModel(method)).order
    origin = request.origin.reordered(order)
    return replace(request, tokens=origin.tokens, origin=origin, report=replace(request.report, order=order))
