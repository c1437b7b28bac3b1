"""Tables without lines for the terminal."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


def plain_table(title: str, first: str, *others: str, wrap: bool = False) -> Table:
    """A column of names, folded if long, and columns of figures.

    Args:
        wrap: wrap the columns of figures on a narrow terminal.
    """
    table = Table(title=Text(title), box=None, padding=(0, 1, 0, 0), header_style="bold underline")
    table.add_column(Text(first), overflow="fold")
    for heading in others:
        table.add_column(Text(heading), justify="right", no_wrap=not wrap)
    return table


@dataclass(frozen=True)
class MethodName:
    """A cell with a method's name, which is folded before its parameters and after hyphens."""

    name: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(self.folded(options.max_width)), overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, len(self.name)).with_maximum(options.max_width)

    def folded(self, width: int) -> list[str]:
        """The lines of the name in a column of so many characters."""
        if len(self.name) <= width:
            return [self.name]
        name, bracket, parameters = self.name.partition("(")
        return [line for part in (name, bracket + parameters) for line in textwrap.wrap(part, width)]
