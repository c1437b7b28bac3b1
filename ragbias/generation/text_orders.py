"""Order the documents of a prompt without a model, for models that run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragbias.errors import MethodError
from ragbias.generation.preparing import create_report, reason_for_plain
from ragbias.generation.request import Request, SplitPrompt
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


def order_text(prompt: SplitPrompt, method: Method) -> Request:
    """Return a request with the documents in the method's order. Raise ``MethodError`` if the method needs a model."""
    why_plain = reason_for_plain(method, prompt, prompt.parts)
    order: tuple[int, ...] = ()
    if isinstance(method, ReorderingMethod) and not why_plain:
        documents = [list(document.encode()) for document in prompt.parts.documents]  # sorted by bytes, not by tokens
        order = method.rank(documents, _NoModel(method)).order
        prompt = prompt.reordered(order)
    report = create_report(prompt.boundaries, method, why_plain, order=order)
    return Request(prompt, method, why_plain, method, report)
