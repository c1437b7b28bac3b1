"""Import the public names of a package on first use, so that ``import ragbias`` does not import torch.

The file ``__init__.pyi`` of the package lists the names. Type checkers and the API reference also read this file.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # importing typing would double the import time of ``ragbias``

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package. ``__all__`` does not list submodules."""
    module = sys.modules[package]
    with open(f"{module.__file__}i", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ragbias")]
    origins = {name: origin for _, origin, _, name, *_ in lines}

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if origins[name] == package:
            return import_module(f"{package}.{name}")
        found = getattr(import_module(origins[name]), name)
        setattr(module, name, found)
        return found

    def names() -> list[str]:  # without submodules that other imports loaded
        return sorted({*(name for name in vars(module) if name.startswith("__")), *origins})

    return get, names, [name for name in origins if origins[name] != package]
