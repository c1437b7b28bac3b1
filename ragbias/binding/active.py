"""Which binding on a model the running thread (or task) has opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol, TypeAlias, cast

from torch import Tensor, nn

Rotation: TypeAlias = tuple[Tensor, Tensor] | None


class Opened(Protocol):
    """What a thread opened on a decoder: a method, or the plain model.

    Attributes:
        modules: at least the attention modules of the decoder.
        layers: those that a method acts on, with their indices.
        is_open: False from the moment on at which the context ends.
    """

    decoder: nn.Module
    modules: Collection[nn.Module]
    layers: Mapping[nn.Module, int]
    is_open: bool


class ActiveBinding(Protocol):
    """What a hooked attention module asks of the method's binding.

    Attributes:
        wants_positions: whether queries and keys shall keep the model's own rotation.
    """

    wants_positions: bool

    def note(self, hidden: Tensor, rotation: Rotation) -> None:
        """Take down what the layer reads, and the model's ``(cos, sin)`` for it."""

    def projecting(self) -> AbstractContextManager[None]:
        """Inside, projections read what they are given."""

    def projection_input(self, module: nn.Module, hidden: Tensor, of: Literal["query", "key"]) -> Tensor:
        """What the projection of queries or keys shall read instead of ``hidden``."""

    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plain: Callable[..., Tensor],
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """The layer's attention as the method computes it; ``plain`` is the model's own."""


opened: ContextVar[tuple[Opened, ...]] = ContextVar("ragbias_opened", default=())


def active_binding_of(module: nn.Module) -> ActiveBinding | None:
    """The innermost binding on the module's model, if it acts on this attention module."""
    for binding in reversed(opened.get()):
        if module in binding.modules and binding.is_open:
            return cast(ActiveBinding, binding) if module in binding.layers else None
    return None


def binding_of(decoder: nn.Module) -> Opened | None:
    """The innermost binding on this decoder."""
    return next((binding for binding in reversed(opened.get()) if binding.decoder is decoder and binding.is_open), None)


@contextmanager
def opening(binding: Opened) -> Iterator[None]:
    """The binding is the innermost of this thread (or task) until the context ends.

    It may end in another thread or task, as that of a generator does which is closed there.
    """
    try:
        try:
            opened.set((*opened.get(), binding))
            yield
        finally:
            binding.is_open = False
    finally:
        binding.is_open = False  # once more, as an interrupt may come before the line above
        opened.set(tuple(each for each in opened.get() if each.is_open))
