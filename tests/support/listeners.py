"""Tests of an integration that see nothing of what other tests retrieved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def fresh_listener(install: Callable[[], None], uninstall: Callable[[], None]) -> Iterator[None]:
    """Inside of it nothing is known of what was retrieved outside, and the other way round."""
    uninstall()
    install()
    yield
    uninstall()
    install()
