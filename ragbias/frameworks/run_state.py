"""Recent retrievals and last reports, which the steps of one run share. A context is a thread or a task.

Each context inherits these variables when it is copied:

- ``Retrievals._seen``: recent retrievals and the last failure, from the first retrieval until ``clear``. Retrievals
  are dropped by age, see ``Registry``. A run shares them among its steps until it ends.
- ``Retrievals._tasks``: the running asyncio tasks that see this context's retrievals, from ``enter_task`` on.
- ``Retrievals._requests``: what the task that began a request sees of its threads and child tasks, from ``begin``
  until the request ends.
- ``LastReports``: the last report of each LLM object, from its answer until ``forget`` or ``invalidate``.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from traceback import walk_stack
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar
from weakref import ref

from ragbias.boundaries import Registry
from ragbias.call_site import remember_call_site

FAILURE_AGE = 60.0  # seconds until a failure is no longer reported
T = TypeVar("T")
_searching: ContextVar[bool] = ContextVar("ragbias_searching", default=False)  # a search often calls another one


@dataclass
class _Scope(Generic[T]):
    """The value before a run, the run's copy of it, and whether copied contexts share this copy."""

    inherited: T | None
    own: T | None = None
    shared: bool = False

    def end(self) -> None:
        self.shared = False


class ContextScoped(Generic[T]):
    """One value per context.

    A copied context inherits the value, and copies it before the first change. This isolates the requests of servers,
    which run each request in a copy of one context. During a run, copied contexts share one value, because frameworks
    run the steps of chains and agents in copies. ``copy`` copies a value, or creates one if there is none.
    """

    def __init__(self, name: str, copy: Callable[[T | None], T]) -> None:
        self._scope: ContextVar[_Scope[T] | None] = ContextVar(name, default=None)
        self._copy = copy
        self._lock = threading.Lock()

    def get(self) -> T | None:
        """Return the value of this context for reading, or ``None``."""
        scope = self._scope.get()
        return None if scope is None else scope.inherited if scope.own is None else scope.own

    def own(self) -> T:
        """Return the value of this context for changes. During a run, contexts share it."""
        scope = self._scope.get()
        with self._lock:
            if scope is not None and scope.shared:
                if scope.own is None:
                    scope.own = self._copy(scope.inherited)
                return scope.own
        own = self._copy(self.get())
        self._scope.set(_Scope(None, own))
        return own

    def begin(self, empty: bool = False) -> Callable[[], None]:
        """Begin a run, optionally without a value. Return a function that ends the run and works in any context."""
        scope = _Scope(None if empty else self.get(), shared=True)
        self._scope.set(scope)
        return scope.end

    def invalidate(self) -> None:
        """Drop the value of this context and of the contexts that share it."""
        scope = self._scope.get()
        if scope is not None:
            scope.inherited = scope.own = None

    def forget(self) -> None:
        """Drop the value of this context."""
        self._scope.set(None)


@dataclass
class _Seen:
    """The retrievals of a context, and its last failure with its time."""

    registry: Registry
    failure: str = ""
    failed: float = float("-inf")


Tasks = tuple[tuple["ref[asyncio.Task[Any]]", Registry], ...]
"""Tasks, the innermost first. Each has the retrievals of its threads and child tasks, which only this task sees."""


class Retrievals:
    """Recent retrievals per context, for requests outside a run. See ``ContextScoped``.

    An asyncio task also sees the retrievals of its threads and child tasks, if they run in copies of its context.
    Threads and child tasks do not see each other's retrievals, because each may serve another request.

    If one thread serves several users in turn, a later user can see earlier documents. To prevent this, run each
    request in a separate context: ``contextvars.copy_context().run(answer, request)``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.clear()

    def clear(self) -> None:
        """Forget all retrievals and failures in all contexts."""
        self._everywhere = Registry()
        self._seen: ContextScoped[_Seen] = ContextScoped(self._name, self._copy)
        self._tasks: ContextVar[Tasks] = ContextVar(f"{self._name}_tasks", default=())
        self._requests: ContextVar[Sequence[Registry]] = ContextVar(f"{self._name}_requests")

    def enter_task(self) -> Tasks:
        """Let the current asyncio task see the retrievals of the threads and tasks that it will start.

        Returns:
            the current task, if any, and the tasks whose contexts were copied.
        """
        current, tasks = _current_task(), self._tasks.get()
        if current is not None and not (tasks and tasks[0][0]() is current):
            running = ((task, registry) for task, registry in tasks if (alive := task()) and not alive.done())
            tasks = ((ref(current), self._copy(None).registry), *running)
            self._tasks.set(tasks)
        return tasks

    def registry(self) -> Registry | None:
        """Return the retrievals of this context for reading, or ``None``."""
        seen, below = self._seen.get(), self._below()
        if not below:
            return None if seen is None else seen.registry
        merged = self._copy(seen).registry
        for texts in chain.from_iterable(reversed(registry.candidates()) for registry in below):
            merged.add(texts)
        return merged

    def _below(self) -> list[Registry]:
        """Copy the retrievals of threads and child tasks of this task, and of the task that began the request."""
        current = _current_task()
        tasks = self.enter_task()[:1] if current else ()
        here = [registry.copy() for task, registry in tasks if task() is current and len(registry)]
        return [*self._requests.get(()), *here]

    def add(self, texts: Iterable[str]) -> None:
        texts, current = tuple(texts), _current_task()
        self._seen.own().registry.add(texts)
        self._everywhere.add(texts)
        for task, registry in self.enter_task():
            if task() is not current:
                registry.add(texts)

    def fail(self, failure: str) -> None:
        """Record a failure after which documents may be missing."""
        seen = self._seen.own()
        seen.failure, seen.failed = failure, time.monotonic()

    def failure(self) -> str:
        """Return the last failure, or an empty string if there is no recent one."""
        seen = self._seen.get()
        return seen.failure if seen is not None and time.monotonic() - seen.failed < FAILURE_AGE else ""

    def begin(self, shared: bool = True) -> Callable[[], None]:
        """Begin a request and return a function that ends it. Copied contexts inherit its call site and retrievals.

        ``shared`` means that the request is a run, whose steps share their retrievals.
        """
        below = self._below()
        self._requests.set(below)
        ends = ExitStack()
        ends.callback(below.clear)
        ends.callback(remember_call_site())
        if shared:
            ends.callback(self._seen.begin())
        return ends.close

    def _copy(self, seen: _Seen | None) -> _Seen:
        if seen is None:
            return _Seen(Registry(self._everywhere))
        return _Seen(seen.registry.copy(), seen.failure, seen.failed)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no running event loop in this thread
        return None


class Owner:
    """Identity of an LLM object. ``LastReports`` drops its report when the object is deleted."""


Reports = dict["ref[Owner]", dict[str, Any]]


class LastReports(ContextScoped[Reports]):
    """The last report of each LLM object per context. When a run ends, its caller sees the reports of its steps."""

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda old: {owner: report for owner, report in list((old or {}).items()) if owner()})

    def note(self, owner: Owner, report: dict[str, Any]) -> None:
        """Store the report of the owner's last answer."""
        self.own()[ref(owner)] = report

    def last(self, owner: Owner) -> dict[str, Any] | None:
        """Return the report of the owner's last answer in this context, or ``None`` before the first answer."""
        return (self.get() or {}).get(ref(owner))


@dataclass(eq=False)
class SearchWatch:
    """Pass the results of direct searches on vector stores to ``seen``, which must not raise.

    Frameworks send no events for these searches. So the base class of the stores gets an attribute
    ``__getattribute__``, which wraps search methods when they are looked up. It covers stores of every class, also of
    classes defined later, and ``uninstall`` removes it.

    Args:
        base: base class of all vector stores.
        names: prefixes of the names of its search methods.
        retriever: base class of all retrievers, whose own searches do not count.
        steps: names of the retrievers' methods that search.
        calls: names of the retrievers' methods for users.
        before: called when a search or one of ``calls`` is looked up, in the context that gets the result.
    """

    base: type
    names: tuple[str, ...]
    retriever: type
    steps: tuple[str, ...]
    seen: Callable[[Any], None]
    calls: tuple[str, ...]
    before: Callable[[], object]

    def __post_init__(self) -> None:
        self._installed: dict[type, Callable[[Any, str], Any]] = {}
        self._watched = functools.lru_cache(maxsize=256)(self._watch)

    def install(self) -> None:
        """Start watching; a second call does nothing."""
        if self._installed:
            return
        self._hook(self.base, self.names)
        self._hook(self.retriever, self.calls)

    def _hook(self, watched: type, names: tuple[str, ...]) -> None:
        lookup: Callable[[Any, str], Any] = watched.__getattribute__  # type: ignore[assignment]  # unbound

        def look_up(owner: Any, name: str) -> Any:
            member = lookup(owner, name)
            if not name.startswith(names) or not self._installed or self._is_retrieving():
                return member
            self.before()
            method = isinstance(member, MethodType) and isinstance(member.__func__, FunctionType)
            searches = watched is self.base and method and member.__self__ is owner
            return MethodType(self._watched(member.__func__), owner) if searches else member

        self._installed[watched] = look_up
        watched.__getattribute__ = look_up  # type: ignore[method-assign, assignment]

    def uninstall(self) -> None:
        """Stop watching and restore the base classes."""
        for watched, hook in self._installed.items():
            if watched.__dict__.get("__getattribute__") is hook:
                del watched.__getattribute__
        self._installed = {}
        self._watched.cache_clear()

    def _is_retrieving(self) -> bool:
        callers = (frame for frame, _ in walk_stack(sys._getframe(1)) if frame.f_code.co_name in self.steps)
        return any(isinstance(frame.f_locals.get("self"), self.retriever) for frame in callers)

    def _watch(self, search: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(search)
        async def awatched(*args: Any, **kwargs: Any) -> Any:
            with _outermost() as is_outermost:
                result = await search(*args, **kwargs)
            return self._reported(result, is_outermost)

        @functools.wraps(search)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with _outermost() as is_outermost:
                result = search(*args, **kwargs)
            return self._reported(result, is_outermost)

        return awatched if inspect.iscoroutinefunction(search) else watched

    def _reported(self, result: Any, is_outermost: bool) -> Any:
        if is_outermost and self._installed:  # the method may have been looked up before ``uninstall``
            self.seen(result)
        return result


@contextmanager
def _outermost() -> Iterator[bool]:
    """Yield whether a search is not part of another search."""
    is_outermost = not _searching.get()
    _searching.set(True)
    try:
        yield is_outermost
    finally:
        _searching.set(not is_outermost)
