"""``ragbias methods``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ragbias.cli.terminal import JsonPath, console, write_json


def list_methods(
    name: Annotated[str | None, typer.Argument(help="One method, in detail.")] = None,
    advice: Annotated[
        bool, typer.Option("--advice", help="Recommend a method for each kind of task, by studies on real models.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of the docs.")] = False,
    json_path: JsonPath = None,
) -> None:
    """List the methods with their requirements and guarantees, or recommend some."""
    from ragbias.cli.method_table import HEADINGS, as_markdown, family_notes, method_table
    from ragbias.methods import method_class

    if advice:
        if name is not None or markdown:
            raise typer.BadParameter("--advice goes with neither a method's name nor --markdown; leave one out")
        _advise(json_path)
        return
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
        console.print(_table(("method", "what it does"), [(row.name, row.description) for row in rows]))
        console.print()
        console.print(_table(HEADINGS[:6], [row.cells()[:6] for row in rows], no_wrap=True))
        console.print(f"\n{family_notes()}")
        console.print("`ragbias methods NAME`: parameters, description, cost and source.")
        console.print("`ragbias methods --advice`: a recommendation for each kind of task.")
    write_json({row.name: row.as_dict() for row in rows}, json_path)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], no_wrap: bool = False) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold underline")
    for index, heading in enumerate(headings):
        table.add_column(heading, no_wrap=no_wrap or index == 0)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _advise(json_path: Path | None) -> None:
    """Print the recommendation for each kind of task, and its reasons."""
    from ragbias.evaluation.advice import advised, default_in_words, heading, packaged, reasons

    found = advised(packaged())
    for each in found:
        console.print(heading(each), style="bold")
        for reason in reasons(each):
            console.print(Padding(Text(reason), (0, 0, 0, 2)))
    console.print(f"\n{default_in_words(found)} Run `ragbias audit` on your own questions.")
    write_json([asdict(each) for each in found], json_path)
