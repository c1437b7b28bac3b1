"""The retrievals of runs, and context variables for recent retrievals and last reports.

``Runs`` stores the retrievals of each chain, agent or query until it ends. The other state is stored per context.
Each thread or asyncio task has a context. A new context begins as a copy of the context in which it was created.
Frameworks run each step of a chain or agent in such a copy. Nevertheless, the steps of a run share these values:

- ``Retrievals._seen``: recent retrievals, and the last failure to record one.
- ``Retrievals._tasks``: the asyncio task that created this context, the task that started that one, and so on. All of
  them see the retrievals of this context.
- ``Retrievals._requests``: retrievals of other threads and tasks, copied when the current request began.
- ``LastReports``: the last report of each LLM object.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Generic, TypeVar
from weakref import ref

from ragbias.boundaries import Boundaries, Registry, Segmenter, locate
from ragbias.boundaries.sources import MAX_AGE, merge_fields
from ragbias.boundaries.text import join_reasons
from ragbias.call_site import add_framework as add_framework
from ragbias.call_site import remember_call_site
from ragbias.frameworks.missing_documents import LocatedDocuments

FAILURE_AGE = 60.0  # seconds for which a failure is reported
MAX_RUNS = 1024  # maximum number of root runs; a run with an unfinished stream may never end
T = TypeVar("T")
Begin = Callable[[], Callable[[], None]]  # begins something, and returns a function that ends it


@dataclass
class _Scope(Generic[T]):
    """The value before a run, the run's changed copy of it, and whether copied contexts share the copy."""

    inherited: T | None
    local: T | None = None
    shared: bool = False

    def end(self) -> None:
        self.shared = False


class ContextScoped(Generic[T]):
    """One value per context.

    A copied context inherits the value. During a run of a chain or agent, copied contexts share one value. Outside a
    run, a context that changes the value changes only its own copy. This isolates the requests of a server.

    Args:
        copy: a function that copies a value, or creates a value if its argument is ``None``.
    """

    def __init__(self, name: str, copy: Callable[[T | None], T]) -> None:
        self._scope: ContextVar[_Scope[T] | None] = ContextVar(name, default=None)
        self._copy = copy
        self._lock = threading.Lock()

    def get(self) -> T | None:
        """Return the value of this context for reading, or ``None`` if there is none."""
        scope = self._scope.get()
        if scope is None:
            return None
        return scope.inherited if scope.local is None else scope.local

    def get_writable(self) -> T:
        """Return the value of this context, which the caller may change. During a run, copied contexts share it."""
        scope = self._scope.get()
        with self._lock:
            if scope is not None and scope.shared:
                if scope.local is None:
                    scope.local = self._copy(scope.inherited)
                return scope.local
        local = self._copy(self.get())
        self._scope.set(_Scope(None, local))
        return local

    def begin(self, empty: bool = False) -> Callable[[], None]:
        """Begin a run, with no value if ``empty``. Return a function that ends the run. Any context may call it."""
        scope = _Scope(None if empty else self.get(), shared=True)
        self._scope.set(scope)
        return scope.end

    def invalidate(self) -> None:
        """Drop the value of this context and of the contexts that share it."""
        scope = self._scope.get()
        if scope is not None:
            scope.inherited = scope.local = None

    def forget(self) -> None:
        """Drop the value of this context."""
        self._scope.set(None)


@dataclass
class _Seen:
    """The retrievals of a context, its last failure, and the time of the failure in seconds."""

    registry: Registry
    failure: str = ""
    failed: float = float("-inf")


Tasks = tuple[tuple["ref[asyncio.Task[Any]]", Registry], ...]
"""Asyncio tasks, the innermost first. Each comes with the retrievals of the threads and tasks that it started."""


class Retrievals:
    """Recent retrievals of each context, for requests outside a run.

    An asyncio task also sees the retrievals of threads and tasks that it started in copies of its context. The started
    threads and tasks do not see each other's retrievals, because each may serve a different request.

    If one thread serves several users in turn, documents of an earlier user may be found in a prompt of a later user.
    To prevent this, run each request in a separate context: ``contextvars.copy_context().run(answer, request)``.
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
            the current task, if any, and the tasks that started it.
        """
        current, tasks = _current_task(), self._tasks.get()
        if current is not None and not (tasks and tasks[0][0]() is current):
            running = ((task, registry) for task, registry in tasks if (alive := task()) and not alive.done())
            tasks = ((ref(current), self._copy(None).registry), *running)
            self._tasks.set(tasks)
        return tasks

    def registry(self) -> Registry | None:
        """Return the retrievals that this context sees, or ``None`` if there are none. Do not change the result."""
        seen, descendants = self._seen.get(), self._descendant_retrievals()
        if not descendants:
            return None if seen is None else seen.registry
        merged = self._copy(seen).registry
        for texts in chain.from_iterable(reversed(registry.candidates()) for registry in descendants):
            merged.add(texts)
        return merged

    def _descendant_retrievals(self) -> list[Registry]:
        """Copy the retrievals of threads and tasks started by this task, or by the task that began the request."""
        current = _current_task()
        tasks = self.enter_task()[:1] if current else ()
        here = [registry.copy() for task, registry in tasks if task() is current and len(registry)]
        return [*self._requests.get(()), *here]

    def add(self, texts: Iterable[str]) -> None:
        """Record the texts of one retrieval in this context.

        The asyncio task that created this context also sees the texts. So does the task that started that task, and
        so on.
        """
        texts, current = tuple(texts), _current_task()
        self._seen.get_writable().registry.add(texts)
        self._everywhere.add(texts)
        for task, registry in self.enter_task():
            if task() is not current:
                registry.add(texts)

    def fail(self, failure: str) -> None:
        """Record a failure after which documents may be missing."""
        seen = self._seen.get_writable()
        seen.failure, seen.failed = failure, time.monotonic()

    def failure(self) -> str:
        """Return the last failure of this context, or an empty string if there is no recent one."""
        seen = self._seen.get()
        return seen.failure if seen is not None and time.monotonic() - seen.failed < FAILURE_AGE else ""

    def begin(self, shared: bool = True) -> Callable[[], None]:
        """Begin a request. Return a function that ends the request.

        Copied contexts inherit the request's retrievals, and the line of user code to which warnings refer. If
        ``shared``, the request is a run, and its steps also share later retrievals.
        """
        descendants = self._descendant_retrievals()
        self._requests.set(descendants)
        ends = ExitStack()
        ends.callback(descendants.clear)
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


@dataclass
class Run:
    """A root run, such as a chain, an agent or a query, with all its child runs.

    Attributes:
        failure: why retrievals may not have been recorded, or an empty string.
        warn_at_end: functions to call at the end if nothing was retrieved. It is ``None`` in the
            empty ``Run`` that ``Runs.get`` returns outside a run.
    """

    failure: str = ""
    warn_at_end: list[Callable[[], None]] | None = None
    _texts: dict[str, tuple[int, str, int]] = field(default_factory=dict)  # retrieval number, text, count
    _n_retrievals: int = 0
    _on_end: list[Callable[[], None]] = field(default_factory=list)  # called when the run ends or is dropped
    _unfinished: set[Hashable] = field(default_factory=set)  # ids of the root run and of child runs
    _last_use: float = 0.0

    def latest_first(self) -> list[list[str]]:
        """Return the texts of each retrieval, the latest first. A text of two retrievals is listed in the later one."""
        retrievals: dict[int, list[str]] = {}
        for number, text, count in self._texts.values():
            retrievals.setdefault(number, []).extend([text] * count)
        return [retrievals[number] for number in sorted(retrievals, reverse=True)]

    def _add(self, texts: Sequence[str], retrieved: bool) -> None:
        counts = Counter(texts)
        is_new = retrieved or not counts.keys() <= self._texts.keys()
        self._n_retrievals += is_new
        for text in counts:
            self._texts[text] = self._texts.pop(text, (0, text, 0))  # move to the end
        for text in texts:
            number, known, count = self._texts[text]
            number = self._n_retrievals if is_new else number
            self._texts[text] = number, merge_fields(known, text), max(count, counts[text])


class Runs:
    """The unfinished runs of a framework, with their retrievals. Runs that were not used for an hour are dropped.

    All methods are thread-safe. An id that is ``None`` or unknown means a call outside a run.

    Args:
        name: name of a context variable.

    Attributes:
        retrievals: the recent retrievals of each context, recorded inside and outside runs.
    """

    def __init__(self, name: str) -> None:
        self.retrievals = Retrievals(name)
        self._lock = threading.RLock()
        self._runs: OrderedDict[Hashable, Run] = OrderedDict()  # by the id of the root run, the latest used run last
        self._roots: dict[Hashable, Hashable] = {}  # root of each unfinished run

    def open(self, id: Hashable, parent: Hashable, *begins: Begin, shared: bool = True) -> None:
        """Open a run.

        Args:
            parent: id of the parent run; ``None`` for a root run.
            begins: functions such as ``LastReports.begin``, which are called when a root run begins. Each of them
                returns a function, which is called when the root run ends.
            shared: whether the steps of a root run share later retrievals.
        """
        with self._lock:
            root = id if parent is None else parent
            root = self._roots[id] = self._roots.get(root, root)
            run = self._runs.setdefault(root, Run(warn_at_end=[]))
            run._unfinished.add(id)
            if parent is None:
                run._on_end += [self.retrievals.begin(shared), *(begin() for begin in begins)]
            self._find(id)  # the run is in use
            while len(self._runs) > MAX_RUNS or run._last_use - next(iter(self._runs.values()))._last_use > MAX_AGE:
                self._drop(next(iter(self._runs)))

    def close(self, id: Hashable) -> None:
        """Close a run. If it is a root run that retrieved nothing, call the functions in ``warn_at_end``."""
        warn_at_end = None
        with self._lock:
            root = self._roots.pop(id, None)
            if run := self._runs.get(root):
                run._unfinished.discard(id)
                if id == root or not run._unfinished:
                    self._drop(root)
                    warn_at_end = None if run._texts else run.warn_at_end
        for warn in warn_at_end or ():
            warn()

    def add(self, id: Hashable, texts: Sequence[str], retrieved: bool = True) -> None:
        """Record the texts of one retrieval.

        Texts that no retriever returned (``retrieved=False``) count as a new retrieval if at least one of them is new.
        """
        if texts:
            self.retrievals.add(texts)
            with self._lock:
                if run := self._find(id):
                    run._add(texts, retrieved)

    def fail(self, failure: str, *ids: Hashable) -> None:
        """Record why retrievals may be missing, for requests in this context and in the runs with these ``ids``."""
        self.retrievals.fail(failure)
        with self._lock:
            for run in filter(None, map(self._find, ids)):
                run.failure = failure

    def get(self, id: Hashable) -> Run:
        """Return a copy of a run's root run. Outside a run, return an empty ``Run`` with the context's last failure."""
        with self._lock:
            if run := self._find(id):
                return replace(run, _texts=run._texts.copy())
        return Run(self.retrievals.failure())

    def locate(
        self,
        id: Hashable,
        prompt: str,
        documents: Sequence[str] | None = None,
        segmenter: Segmenter | None = None,
        artifacts: Sequence[Sequence[str]] = (),
        boundaries: Boundaries | None = None,
    ) -> LocatedDocuments:
        """Locate documents in a prompt: those of the call, of its run, or of recent retrievals of this context.

        Args:
            documents, segmenter, artifacts: see ``ragbias.boundaries.locate``.
            boundaries: known boundaries, if the chat template rendered the documents. ``None``: search the prompt.
        """
        run = self.get(id)
        if boundaries is None:
            latest, recent = run.latest_first(), self.retrievals.registry()
            boundaries = locate(
                prompt, documents=documents, artifacts=artifacts, run=latest, registry=recent, segmenter=segmenter
            )
        reason = join_reasons(boundaries.reason, run.failure)
        warn_at_end = None if run.failure else run.warn_at_end
        return LocatedDocuments(replace(boundaries, reason=reason), warn_at_end)

    def clear(self) -> None:
        """Forget all runs, retrievals and failures."""
        self.retrievals.clear()
        with self._lock:
            for root in list(self._runs):
                self._drop(root)

    def _find(self, id: Hashable) -> Run | None:
        root = self._roots.get(id, id)
        if root in self._runs:
            self._runs.move_to_end(root)
            self._runs[root]._last_use = time.monotonic()
        return self._runs.get(root)

    def _drop(self, root: Hashable) -> None:
        run = self._runs.pop(root)
        for id in run._unfinished:
            self._roots.pop(id, None)
        for end in run._on_end:
            end()


class Owner:
    """The identity of an LLM object. When the object is deleted, ``LastReports`` drops its report."""


Reports = dict["ref[Owner]", dict[str, Any]]


class LastReports(ContextScoped[Reports]):
    """The last report of each LLM object in each context. The caller of a run sees the reports of its steps."""

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda old: {owner: report for owner, report in list((old or {}).items()) if owner()})

    def store(self, owner: Owner, report: dict[str, Any]) -> None:
        """Store the report of the owner's last answer."""
        self.get_writable()[ref(owner)] = report

    def last_report(self, owner: Owner) -> dict[str, Any] | None:
        """Return the report of the owner's last answer in this context, or ``None`` before the first answer."""
        return (self.get() or {}).get(ref(owner))
