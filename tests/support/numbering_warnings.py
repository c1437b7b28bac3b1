"""Assert that numbered headers cause one warning per calling line."""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ragbias.errors import NumberedHeadersWarning


def assert_warned_at_their_lines(places: Sequence[Callable[[], Any]]) -> None:
    """Assert that each call warns at its own line, and only the first time."""
    for place in places:
        with pytest.warns(NumberedHeadersWarning, match="strip_numbering=True") as warned:
            report = place()
        assert (report["source"], report["n_found"], report["numbering"]) == ("headers", 3, "present")
        code = place.__code__
        own = [each for each in warned if each.category is NumberedHeadersWarning]  # no garbage of other tests
        lines = [(each.filename, each.lineno) for each in own]
        assert lines == [(code.co_filename, code.co_firstlineno)], [str(each) for each in warned]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [place()["numbering"] for place in places] == ["present"] * len(places)


def assert_warned_once_in_threads(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Assert one warning if ``call`` is library code and the thread runs no user code."""
    with ThreadPoolExecutor(2) as pool:
        with pytest.warns(NumberedHeadersWarning):
            pool.submit(call, *arguments, **options).result()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pool.submit(call, *arguments, **options).result()
