"""A table of figures on the terminal, without lines."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text


def plain_table(title: str, first: str, *others: str, wrap: bool = False) -> Table:
    """A table without lines: a column of names, folded where they are long, and columns of figures.

    Args:
        wrap: let the columns of figures wrap where the terminal is narrow.
    """
    table = Table(title=Text(title), box=None, padding=(0, 1, 0, 0), header_style="bold underline")
    table.add_column(Text(first), overflow="fold")
    for heading in others:
        table.add_column(Text(heading), justify="right", no_wrap=not wrap)
    return table
