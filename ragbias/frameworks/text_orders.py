"""Order the documents of a prompt without a model, for models that run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ragbias.boundaries import Boundaries
from ragbias.errors import MethodError
from ragbias.generation import Request
from ragbias.generation.request import Origin, create_report, split_prompt
from ragbias.methods import Method, NoMethod, ReorderingMethod
from ragbias.prompt import TokenisedPrompt

NEEDS_A_MODEL = (
    "works inside the model, but the model runs elsewhere; use a method that only orders text, such as canonical-order "
    "or long-context-reorder, or none; in front of vLLM, `ragbias proxy` runs pcw and rotor"
)


class _NoModel:
    """A placeholder for the model that raises ``MethodError`` if a method uses it."""

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


def text_origin(prompt: str, boundaries: Boundaries, method: Method, strip_numbering: bool = False) -> Origin:
    """Split a prompt at its documents, without a model. UTF-8 bytes are used as tokens."""
    split = split_prompt(prompt, None, boundaries, strip_numbering)
    texts = (split.parts.prefix, *split.parts.documents, split.parts.suffix)
    prefix, *documents, suffix = (list(text.encode("utf-8", "replace")) for text in texts)
    tokens = TokenisedPrompt(prefix, documents, suffix)
    return Origin(split.parts, tokens, split.flat, method, split.boundaries, split.reason)


def order_text(origin: Origin) -> Request:
    """Reorder the documents with the requested method. Raise ``MethodError`` if the method needs a model."""
    method, report = origin.method_requested, create_report(origin)
    if isinstance(method, ReorderingMethod) and report.method_ran == method.name:
        order = method.rank(origin.tokens.documents, _NoModel(method)).order
        origin, report = origin.reordered(order), replace(report, order=order)
    return Request(origin.tokens, method, report, origin)
