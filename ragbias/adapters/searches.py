"""Direct searches on vector stores, which frameworks announce to nobody: seen where the search method is looked up.

No store's class is touched. One attribute on their common base class, ``__getattribute__``, gives a watched method for
the names of searches; so stores of every class are seen, also of those that are defined later, and ``uninstall`` takes
the attribute off again. What a search returns or raises is passed on as it is.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import FunctionType, MethodType
from typing import Any

Seen = Callable[[Any], None]

_searching: ContextVar[bool] = ContextVar("ragbias_searching", default=False)  # one search often calls another


class SearchWatch:
    """Tells of the results of direct searches.

    Args:
        base: the base class of all vector stores.
        names: what the names of its search methods begin with.
        retriever: the base class of all retrievers, whose own searches are part of what they retrieve.
        steps: the names of the retrievers' methods that search.
        seen: called with what a search returned; must not raise.
    """

    def __init__(self, base: type, names: tuple[str, ...], retriever: type, steps: tuple[str, ...], seen: Seen) -> None:
        self._base, self._names, self._retriever, self._steps = base, names, retriever, steps
        self._installed: Callable[[Any, str], Any] | None = None
        self._before: Callable[[Any, str], Any] | None = None  # the base class's own, if it has one
        self._seen = seen
        self._watched = functools.lru_cache(maxsize=256)(functools.partial(_watched, self._tell))

    def install(self) -> None:
        """Watch from now on; a second call does nothing."""
        if self._installed is not None:
            return
        self._before = self._base.__dict__.get("__getattribute__")
        lookup: Callable[[Any, str], Any] = self._base.__getattribute__  # type: ignore[assignment]  # a function, not bound
        names = self._names

        def look_up(store: Any, name: str) -> Any:
            found = lookup(store, name)
            if not name.startswith(names) or self._installed is None or self._is_retrieving():
                return found
            method = isinstance(found, MethodType) and isinstance(found.__func__, FunctionType)
            return MethodType(self._watched(found.__func__), store) if method and found.__self__ is store else found

        self._installed = look_up
        self._base.__getattribute__ = look_up  # type: ignore[method-assign, assignment]

    def uninstall(self) -> None:
        """Watch no longer, and leave the base class as it was."""
        if self._installed is not None and self._base.__dict__.get("__getattribute__") is self._installed:
            if self._before is None:
                del self._base.__getattribute__
            else:
                self._base.__getattribute__ = self._before  # type: ignore[method-assign, assignment]
        self._installed = None
        self._watched.cache_clear()

    def _tell(self, result: Any) -> None:
        if self._installed is not None:  # a method that was looked up before may be called after
            self._seen(result)

    def _is_retrieving(self) -> bool:
        """Whether a retriever is what searches."""
        frame = sys._getframe(1)
        while frame := frame.f_back:  # type: ignore[assignment]
            if frame.f_code.co_name in self._steps and isinstance(frame.f_locals.get("self"), self._retriever):
                return True
        return False


def _watched(tell: Seen, search: Callable[..., Any]) -> Callable[..., Any]:
    """The search, whose result is told if it is not part of another search."""
    if inspect.iscoroutinefunction(search):

        @functools.wraps(search)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            if _searching.get():
                return await search(*args, **kwargs)
            _searching.set(True)
            try:
                result = await search(*args, **kwargs)
            finally:
                _searching.set(False)
            tell(result)
            return result

    else:

        @functools.wraps(search)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if _searching.get():
                return search(*args, **kwargs)
            _searching.set(True)
            try:
                result = search(*args, **kwargs)
            finally:
                _searching.set(False)
            tell(result)
            return result

    return watched
