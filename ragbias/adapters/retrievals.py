"""What was retrieved lately, each context's own, for requests that no run tells what was retrieved for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from weakref import WeakSet

from ragbias.adapters.context_scoped import ContextScoped
from ragbias.boundaries import Registry

MAX_AGE = 3600.0  # seconds for which a retrieval is known
FAILURE_AGE = 60.0  # seconds for which a failure is reported
SWEEP = 60.0  # seconds between looks at contexts in which nothing happens any more


class _Seen:
    """What a context retrieved, and what went wrong there last."""

    def __init__(self, registry: Registry, failure: str = "", failed: float = float("-inf")) -> None:
        self.registry, self.failure, self.failed = registry, failure, failed


class Retrievals:
    """The retrievals of each context (thread or task), and of the run that it belongs to; see ``ContextScoped``.

    So two users of one process neither see nor change what the other's requests find. A thread that works for one user
    after the other is one context; give each request its own, ``contextvars.copy_context().run(answer, request)``.

    Args:
        name: of the context variable.
        process_wide: know in all contexts what any retrieved.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, name: str, process_wide: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._swept = clock, clock()
        self._lock = threading.Lock()
        self._all: WeakSet[_Seen] = WeakSet()
        self._everyones = _Seen(Registry(max_age=MAX_AGE, clock=clock, process_wide=True)) if process_wide else None
        self._seen: ContextScoped[_Seen] = ContextScoped(name, self._copy)

    @property
    def process_wide(self) -> bool:
        """Whether a request finds what any other retrieved."""
        return self._everyones is not None

    def registry(self) -> Registry | None:
        """What this context may know, not to be changed; ``None`` if that is nothing."""
        seen = self._everyones or self._seen.get()
        return None if seen is None else seen.registry

    def add(self, texts: Iterable[str]) -> None:
        """Note one retrieval."""
        self._sweep()
        self._own().registry.add(texts)

    def fail(self, failure: str) -> None:
        """Note that something could not be seen, in plain words."""
        own = self._own()
        own.failure, own.failed = failure, self._clock()

    def failure(self) -> str:
        """What went wrong here last, if that was lately."""
        seen = self._everyones or self._seen.get()
        return seen.failure if seen is not None and self._clock() - seen.failed < FAILURE_AGE else ""

    def begin(self) -> Callable[[], None]:
        """Begin a run, and give what ends it."""
        return self._seen.begin()

    def clear(self) -> None:
        """Forget everything, in all contexts."""
        with self._lock:
            for seen in [*self._all, *([self._everyones] if self._everyones else [])]:
                seen.registry.clear()
                seen.failure = ""

    def _own(self) -> _Seen:
        return self._everyones or self._seen.own()

    def _copy(self, seen: _Seen | None) -> _Seen:
        registry = Registry(max_age=MAX_AGE, clock=self._clock) if seen is None else seen.registry.copy()
        copied = _Seen(registry) if seen is None else _Seen(registry, seen.failure, seen.failed)
        with self._lock:
            self._all.add(copied)
        return copied

    def _sweep(self) -> None:
        """Let go of what is too old in other contexts, say of threads that wait."""
        with self._lock:
            if self._clock() - self._swept < SWEEP:
                return
            self._swept = self._clock()
            waiting = list(self._all)
        for seen in waiting:
            seen.registry.forget_old()
