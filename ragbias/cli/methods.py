"""``ragbias methods``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from ragbias.cli.terminal import JsonPath, console, write_json


def list_methods(
    name: Annotated[str | None, typer.Argument(help="One method, in detail.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of the docs.")] = False,
    json_path: JsonPath = None,
) -> None:
    """List the methods: what each needs, promises, touches and costs."""
    from ragbias.cli.method_table import HEADINGS, as_markdown, family_notes, method_table
    from ragbias.methods import method_class

    rows = method_table()
    if markdown:
        print(as_markdown(), end="")
    elif name is not None:
        method_class(name)
        (row,) = (row for row in rows if row.name == name)
        console.print(f"{row.constructor}\n", style="bold")
        console.print(row.documentation)
        for heading, cell in zip(HEADINGS[1:], row.cells()[1:], strict=True):
            console.print(f"{heading}: {cell}")
    else:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold underline")
        for heading in HEADINGS[:6]:
            table.add_column(heading, no_wrap=True)
        for row in rows:
            table.add_row(*row.cells()[:6])
        console.print(table)
        console.print(f"\n{family_notes()}\n`ragbias methods NAME`: parameters, what it does, cost and source.")
    write_json({row.name: row.as_dict() for row in rows}, json_path)
