"""Order the documents of a prompt without a model, for models that run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragbias.errors import MethodError
from ragbias.generation.preparing import create_report
from ragbias.generation.request import Origin, Request
from ragbias.methods import Method, NoMethod, ReorderingMethod

NEEDS_A_MODEL = (
    "works inside the model, but the model runs elsewhere; use canonical-order, long-context-reorder or none; in front "
    "of vLLM, `ragbias proxy` runs pcw and rotor"
)


class _NoModel:
    """A placeholder for the model. It raises ``MethodError`` if a method uses it."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def __call__(self, order: Sequence[int] = ()) -> Any:
        raise MethodError(f"{self._method.name} {NEEDS_A_MODEL}")

    contrast = __call__


def check_orders_text(method: Method) -> None:
    """Raise ``MethodError`` unless a method can reorder texts without a model."""
    if isinstance(method, ReorderingMethod):
        method.rank([[1], [2], [3]], _NoModel(method))
    elif not isinstance(method, NoMethod):
        raise MethodError(f"{method.name} {NEEDS_A_MODEL}")


def order_text(origin: Origin) -> Request:
    """Return a request with the documents in the method's order. Raise ``MethodError`` if the method needs a model."""
    method, order = origin.method, tuple[int, ...]()
    if isinstance(method, ReorderingMethod):
        order = method.rank(origin.tokens.documents, _NoModel(method)).order
        origin = origin.reordered(order)
    report = create_report(origin, method, origin.why_plain, order=order)
    return Request(origin.tokens, origin.method_requested, report, origin)
