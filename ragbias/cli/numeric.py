"""Options for whole numbers. Help and errors show the bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import typer

from ragbias.checks import Bounds
from ragbias.display import shown

_WHOLE = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


@dataclass(frozen=True)
class Whole:
    """Parse one whole number within the bounds."""

    bounds: Bounds
    __name__ = "whole number"  # shown by typer

    def __call__(self, typed: str | int) -> int:
        text = str(typed)  # typer also parses defaults, which are numbers
        if _WHOLE.fullmatch(text) and self.bounds.least <= int(text) <= self.bounds.most:
            return int(text)
        raise typer.BadParameter(f"must be a whole number from {self.bounds}, got {shown(text)}")


class Numbers(list[int]):
    """The numbers of a comma-separated option. Typer would take the annotation ``list[int]`` for a repeated option."""


@dataclass(frozen=True)
class Wholes(Whole):
    """Parse a list such as ``2,20,100``."""

    __name__ = "whole numbers"

    def __call__(self, typed: str) -> Numbers:  # type: ignore[override]
        try:
            return Numbers(super(Wholes, self).__call__(part.strip()) for part in typed.split(","))
        except typer.BadParameter:
            raise typer.BadParameter(
                f"must be comma-separated whole numbers from {self.bounds}, got {shown(typed)}"
            ) from None


def whole(bounds: Bounds, help: str) -> Any:
    """Declare an option for a whole number."""
    return typer.Option(parser=Whole(bounds), metavar=str(bounds), help=help)


def wholes(bounds: Bounds, help: str) -> Any:
    """Declare an option for comma-separated ``Numbers``."""
    return typer.Option(parser=Wholes(bounds), metavar=f"{bounds}, ...", help=help)
