"""Values that belong to a context (a thread or a task), and in a run to all that the run starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class _Held(Generic[T]):
    """A value, and whether a run is going on in which copies of the context share it.

    Attributes:
        inherited: what was known before the run began; nothing in the run changes it.
        own: what the run, or this context, changes; ``None`` as long as nothing was changed.
    """

    def __init__(self, inherited: T | None, own: T | None = None, shared: bool = False) -> None:
        self.inherited, self.own, self.shared = inherited, own, shared

    def end(self) -> None:
        self.shared = False


class ContextScoped(Generic[T]):
    """One value for each context.

    A copy of a context starts with the original's value, and what it changes is its own: servers run each request in a
    copy of the same context, and no request may see another's. Only from ``begin`` to the end of that run the copies
    that are made in between share one value, so that the steps of a chain or an agent, which frameworks run in copies,
    leave theirs to each other and to the caller.

    Args:
        name: of the context variable.
        copy: gives a value of its own to whoever changes it, from the value before, if there is one.
    """

    def __init__(self, name: str, copy: Callable[[T | None], T]) -> None:
        self._held: ContextVar[_Held[T] | None] = ContextVar(name, default=None)
        self._copy = copy
        self._lock = threading.Lock()

    def get(self) -> T | None:
        """The value of this context, not to be changed; ``None`` if there is none."""
        held = self._held.get()
        return None if held is None else held.inherited if held.own is None else held.own

    def own(self) -> T:
        """The value of this context, to be changed: the run's, or a copy that is this context's alone."""
        held = self._held.get()
        with self._lock:
            if held is not None and held.shared:
                if held.own is None:
                    held.own = self._copy(held.inherited)
                return held.own
        own = self._copy(self.get())
        self._held.set(_Held(None, own))
        return own

    def begin(self, anew: bool = False) -> Callable[[], None]:
        """Begin a run in this context, and give what ends it. It may be ended in any context.

        Args:
            anew: begin without a value.
        """
        held = _Held(None if anew else self.get(), shared=True)
        self._held.set(held)
        return held.end

    def outdate(self) -> None:
        """Empty the value of this context also for those that the context was copied from."""
        held = self._held.get()
        if held is not None:
            held.inherited = held.own = None

    def forget(self) -> None:
        """Have no value in this context from now on."""
        self._held.set(None)
