"""Record searches that call a vector store directly, without a retriever. Frameworks send no events for them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from traceback import walk_stack
from types import FunctionType, MethodType
from typing import Any

_searching: ContextVar[bool] = ContextVar("ragbias_searching", default=False)  # searches may call other searches


@dataclass(eq=False)
class SearchWatch:
    """Pass the results of direct searches on vector stores to a function.

    Frameworks send no events for these searches. Therefore ``install`` adds a ``__getattribute__`` to the base class of
    all stores. This function wraps each search method when it is looked up. Searches by retrievers are ignored.

    Args:
        base: base class of all vector stores.
        names: prefixes of the names of the stores' search methods.
        retriever: base class of all retrievers.
        steps: names of the retrievers' methods that call search methods.
        seen: called with the result of each search; must not raise an error.
        calls: names of the retrievers' methods that users call.
        before: called when a search method or one of ``calls`` is looked up.
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
        self._wrapped = functools.lru_cache(maxsize=256)(self._wrap)

    def install(self, wanted: bool = True) -> None:
        """Add a ``__getattribute__`` to ``base`` and ``retriever`` once. If not ``wanted``, uninstall."""
        if not wanted:
            self.uninstall()
        elif not self._installed:
            self._hook_lookups(self.base, self.names)
            self._hook_lookups(self.retriever, self.calls)

    def _hook_lookups(self, watched: type, names: tuple[str, ...]) -> None:
        lookup: Callable[[Any, str], Any] = watched.__getattribute__  # type: ignore[assignment]  # unbound

        def look_up(owner: Any, name: str) -> Any:
            member = lookup(owner, name)
            if not name.startswith(names) or not self._installed or self._is_retrieving():
                return member
            self.before()
            method = isinstance(member, MethodType) and isinstance(member.__func__, FunctionType)
            searches = watched is self.base and method and member.__self__ is owner
            return MethodType(self._wrapped(member.__func__), owner) if searches else member

        self._installed[watched] = look_up
        watched.__getattribute__ = look_up  # type: ignore[method-assign, assignment]

    def uninstall(self) -> None:
        """Restore the base classes."""
        for watched, hook in self._installed.items():
            if watched.__dict__.get("__getattribute__") is hook:
                del watched.__getattribute__
        self._installed = {}
        self._wrapped.cache_clear()

    def _is_retrieving(self) -> bool:
        callers = (frame for frame, _ in walk_stack(sys._getframe(1)) if frame.f_code.co_name in self.steps)
        return any(isinstance(frame.f_locals.get("self"), self.retriever) for frame in callers)

    def _wrap(self, search: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(search)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            with _search_scope() as is_outermost:
                result = await search(*args, **kwargs)
            return self._pass_on(result, is_outermost)

        @functools.wraps(search)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with _search_scope() as is_outermost:
                result = search(*args, **kwargs)
            return self._pass_on(result, is_outermost)

        return async_wrapper if inspect.iscoroutinefunction(search) else wrapper

    def _pass_on(self, result: Any, is_outermost: bool) -> Any:
        if is_outermost and self._installed:  # ``uninstall`` may have run after the lookup
            self.seen(result)
        return result


@contextmanager
def _search_scope() -> Iterator[bool]:
    """Mark a search as running. Yield False if it is part of another search."""
    is_outermost = not _searching.get()
    _searching.set(True)
    try:
        yield is_outermost
    finally:
        _searching.set(not is_outermost)
