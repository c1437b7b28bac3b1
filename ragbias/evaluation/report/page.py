"""A report as one self-contained HTML file: pictures embedded, no scripts, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragbias.display import printable
from ragbias.extras import required

required("jinja2", "bench")

from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: E402


@dataclass(frozen=True)
class Grid:
    """A table. A cell ``0.71 (0.62 to 0.79)`` shows its interval in small print."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, then pictures, tables, paragraphs, a list and preformatted text.

    Attributes:
        title: empty: the part goes on without a heading.
        figures: an address and a caption each.
    """

    title: str = ""
    level: int = 2
    figures: Sequence[tuple[str, str]] = ()
    grids: Sequence[Grid] = ()
    text: Sequence[str] = ()
    notes: Sequence[str] = ()
    code: str = ""


def page(title: str, sections: Sequence[Section], lead: tuple[str, str] | None = None) -> str:
    """The HTML of a report.

    Args:
        lead: headline and text of a box at the top.
    """
    environment = Environment(
        loader=PackageLoader("ragbias.evaluation.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
    )
    return environment.get_template("page.html.j2").render(title=title, sections=sections, lead=lead)


def _finalized(value: Any) -> Any:
    """Make text printable."""
    return printable(value) if type(value) is str else value
