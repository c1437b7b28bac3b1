"""Options for whole numbers, with their bounds in the help and in the errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer

from ragbias.checks import Bounds
from ragbias.display import shown

_WHOLE = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


@dataclass(frozen=True)
class Whole:
    """Reads one whole number within the bounds."""

    bounds: Bounds
    __name__ = "whole number"  # typer names a parser

    def __call__(self, typed: str | int) -> int:
        text = str(typed)  # a default is a number already
        if _WHOLE.fullmatch(text) and self.bounds.least <= int(text) <= self.bounds.most:
            return int(text)
        raise typer.BadParameter(f"must be a whole number from {self.bounds}, got {shown(text)}")


@dataclass(frozen=True)
class Wholes(Whole):
    """Checks a list such as ``2,20,100``, see ``numbers``."""

    __name__ = "whole numbers"

    def __call__(self, typed: str) -> str:  # type: ignore[override]
        try:
            for part in typed.split(","):
                super().__call__(part.strip())
        except typer.BadParameter:
            raise typer.BadParameter(
                f"must be whole numbers from {self.bounds} with commas between them, got {shown(typed)}"
            ) from None
        return typed


def whole(bounds: Bounds, help: str) -> Any:
    """An option for a whole number."""
    return typer.Option(parser=Whole(bounds), metavar=str(bounds), help=help)


def wholes(bounds: Bounds, help: str) -> Any:
    """An option for whole numbers with commas between them, as text."""
    return typer.Option(parser=Wholes(bounds), metavar=f"{bounds}, ...", help=help)


def numbers(text: str | None) -> list[int] | None:
    """The numbers of an option made by ``wholes``."""
    return None if text is None else [int(part) for part in text.split(",")]


def ranged(spread: Sequence[float]) -> str:
    """A median with the lowest and the highest value."""
    median, low, high = spread
    return f"{median:.2f} ({low:.2f}-{high:.2f})"
