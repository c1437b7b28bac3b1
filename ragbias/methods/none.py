"""The model as it is."""

from __future__ import annotations

from dataclasses import dataclass

from ragbias.methods.base import Method


@dataclass(frozen=True)
class NoMethod(Method):
    """No method: plain generation, the baseline of every comparison."""

    name = "none"
    needs_documents = False
    cost = "none"
    source = ""
