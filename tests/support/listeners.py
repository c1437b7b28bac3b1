"""Isolate tests of an integration from the retrievals of other tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def fresh_listener(install: Callable[[], None], uninstall: Callable[[], None]) -> Iterator[None]:
    """Isolate the block: retrievals inside and outside are not visible to each other."""
    uninstall()
    install()
    yield
    uninstall()
    install()
