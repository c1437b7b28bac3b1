"""Which binding a thread (or task) is inside of."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Union, cast

from torch import nn

if TYPE_CHECKING:
    from ragbias.binding.binding import Binding, Plain

Opened = Union["Binding", "Plain"]

opened: ContextVar[tuple[Opened, ...]] = ContextVar("ragbias_opened", default=())


def active_binding_of(module: nn.Module) -> Binding | None:
    """The innermost binding on the module's model, if it acts on this attention module."""
    for binding in reversed(opened.get()):
        if module in binding.modules and binding.is_open:
            return cast("Binding", binding) if module in binding.layers else None
    return None


def binding_of(decoder: nn.Module) -> Opened | None:
    """The innermost binding on this decoder."""
    return next((binding for binding in reversed(opened.get()) if binding.decoder is decoder and binding.is_open), None)
