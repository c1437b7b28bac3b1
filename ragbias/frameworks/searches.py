"""Observe direct searches of vector stores, for which frameworks send no events.

``install`` sets ``__getattribute__`` on the base class of all stores, which wraps search methods on access. This also
covers classes that are defined later. ``uninstall`` removes it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType, MethodType
from typing import Any

_searching: ContextVar[bool] = ContextVar("ragbias_searching", default=False)  # a search may call another search


class SearchWatch:
    """Pass the results of direct searches to ``seen``, which must not raise errors.

    Args:
        base: base class of all vector stores.
        names: prefixes of the names of search methods.
        retriever: base class of all retrievers. Searches by retrievers are ignored.
        steps: names of the retrievers' search methods.
        calls: names of the retrievers' public methods.
        before: called when a search method or one of ``calls`` is accessed, in the context of the caller.
    """

    def __init__(
        self,
        base: type,
        names: tuple[str, ...],
        retriever: type,
        steps: tuple[str, ...],
        seen: Callable[[Any], None],
        calls: tuple[str, ...],
        before: Callable[[], object],
    ) -> None:
        self._base, self._names, self._retriever, self._steps = base, names, retriever, steps
        self._calls, self._before = calls, before
        self._installed: dict[type, Callable[[Any, str], Any]] = {}
        self._seen = seen
        self._watched = functools.lru_cache(maxsize=256)(self._watch)

    def install(self) -> None:
        """Start observing. A second call has no effect."""
        if self._installed:
            return
        self._hook(self._base, self._names)
        self._hook(self._retriever, self._calls)

    def _hook(self, watched: type, names: tuple[str, ...]) -> None:
        lookup: Callable[[Any, str], Any] = watched.__getattribute__  # type: ignore[assignment]  # unbound

        def look_up(owner: Any, name: str) -> Any:
            member = lookup(owner, name)
            if not name.startswith(names) or not self._installed or self._is_retrieving():
                return member
            self._before()
            method = isinstance(member, MethodType) and isinstance(member.__func__, FunctionType)
            searches = watched is self._base and method and member.__self__ is owner
            return MethodType(self._watched(member.__func__), owner) if searches else member

        self._installed[watched] = look_up
        watched.__getattribute__ = look_up  # type: ignore[method-assign, assignment]

    def uninstall(self) -> None:
        """Stop observing and restore the base classes."""
        for watched, hook in self._installed.items():
            if watched.__dict__.get("__getattribute__") is hook:
                del watched.__getattribute__
        self._installed = {}
        self._watched.cache_clear()

    def _is_retrieving(self) -> bool:
        frame = sys._getframe(1)
        while frame := frame.f_back:  # type: ignore[assignment]
            if frame.f_code.co_name in self._steps and isinstance(frame.f_locals.get("self"), self._retriever):
                return True
        return False

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
        if is_outermost and self._installed:  # the method may have been accessed before ``uninstall``
            self._seen(result)
        return result


@contextmanager
def _outermost() -> Iterator[bool]:
    """Yield whether this search is not part of another search."""
    if _searching.get():
        yield False
        return
    _searching.set(True)
    try:
        yield True
    finally:
        _searching.set(False)
