"""Packages of the optional extras: imported, or refused with the command that installs them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ragbias.errors import MissingExtraError


def required(module: str, extra: str) -> ModuleType:
    """Import a module of an optional extra.

    Args:
        module: its full name, e.g. ``"pydantic"``.
        extra: the extra of ragbias that brings it, e.g. ``"bench"``.

    Raises:
        MissingExtraError: it, or something that it imports, is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module} cannot be imported ({error}); install it with: pip install 'ragbias[{extra}]'"
        ) from error
