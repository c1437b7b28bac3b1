"""``ragbias methods``: show the requirements, guarantees and cost of each method."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from textwrap import fill, indent
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ragbias.binding import ARCHITECTURES
from ragbias.binding.architectures import ROTARY
from ragbias.cli.terminal import Force, JsonPath, console, write_json
from ragbias.methods import Method, method_class, method_names

HEADINGS = ("method", "acts on", "spans", "invariant", "layers", "families", "cost relative to none", "source")
FIGURES = "docs/results/models.md"


def list_methods(
    name: Annotated[str | None, typer.Argument(help="Show one method in detail.")] = None,
    advice: Annotated[
        bool, typer.Option("--advice", help="Recommend a method for each kind of task, from studies of real models.")
    ] = False,
    json_path: JsonPath = None,
    force: Force = False,
) -> None:
    """List the methods with their requirements and guarantees, or recommend methods."""
    if advice:
        if name is not None:
            raise typer.BadParameter(f"--advice covers all methods; leave out --advice or {name!r}")
        _print_advice(json_path)
        return
    rows = describe_methods()
    if name is not None:
        method_class(name)
        console.print(f"{rows[name]['constructor']}\n", style="bold")
        print(_reflow(rows[name]["documentation"], console.width))
        for heading, cell in [*format_cells(rows[name]).items()][1:]:
            print(fill(f"{heading}: {cell}", console.width, subsequent_indent="  "))
    else:
        console.print(_table(("method", "what it does"), [(name, row["description"]) for name, row in rows.items()]))
        console.print()
        cells = [[*format_cells(row).values()][:6] for row in rows.values()]
        console.print(_table(HEADINGS[:6], cells, no_wrap=True))
        others = ", ".join(family for family in ARCHITECTURES if family not in ROTARY)
        console.print(
            f"\nfamilies: all = {', '.join(ARCHITECTURES)}; rotary = all but {others}; any = every causal model"
        )
        console.print("`ragbias methods NAME`: parameters, description, cost and source.")
        console.print("`ragbias methods --advice`: a recommendation for each kind of task.")
    write_json(rows, json_path)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], no_wrap: bool = False) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold underline")
    for index, heading in enumerate(headings):
        table.add_column(heading, no_wrap=no_wrap or index == 0)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _reflow(documentation: str, width: int) -> str:
    """Wrap a docstring to ``width`` and remove its backticks. Keep the indentation of list items and arguments."""
    lines = []
    for paragraph in documentation.replace("`", "").split("\n\n"):
        for block in re.split(r"\n(?=- |    \w[\w, ]*: )", paragraph):
            margin = " " * (len(block) - len(block.lstrip()))
            hanging = "  " if block.startswith("- ") else 2 * margin
            lines.append(fill(" ".join(block.split()), width, initial_indent=margin, subsequent_indent=hanging))
        lines.append("")
    return "\n".join(lines)


def _print_advice(json_path: Path | None) -> None:
    # studies/publish.py writes this file; studies/advice.py makes the recommendations
    evidence = json.loads((resources.files("ragbias.cli") / "evidence.json").read_text(encoding="utf-8"))
    console.print(f"{evidence['coverage']}\n")
    for advice in evidence["advice"]:
        console.print(advice["heading"], style="bold")
        for reason in advice["reasons"]:
            print(indent(fill(reason, console.width - 2), "  "))
    console.print(f"\n{evidence['default']} Run ragbias audit on your own questions.\nFigures: {FIGURES}")
    write_json(evidence["advice"], json_path)


def describe_methods() -> dict[str, dict[str, Any]]:
    """Return the declared properties of all methods by name."""
    return {name: describe_method(method_class(name)) for name in method_names()}


def describe_method(method: type[Method]) -> dict[str, Any]:
    documentation = inspect.getdoc(method) or ""
    paragraph = " ".join(documentation.partition("\n\n")[0].split()).replace("`", "")
    parameters = [
        name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
        for name, parameter in inspect.signature(method).parameters.items()
    ]
    return {
        "name": method.name,
        "constructor": f"{method.__name__}({', '.join(parameters)})",
        "acts_on": method.acts_on,
        "needs_spans": method.needs_documents,
        "invariant": method.invariant,
        "layers": method.default_layers,
        "cost": method.cost,
        "families": list(ROTARY if method.needs_rotary else ARCHITECTURES),
        "source": method.source,
        "description": re.split(r"(?<=\.) ", paragraph)[0],
        "documentation": documentation,
    }


def format_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Format a description of a method as table cells, by heading."""
    spans = "yes" if row["needs_spans"] else "no"
    invariant = "yes" if row["invariant"] else "no"
    families = "all" if set(row["families"]) == set(ARCHITECTURES) else "rotary"
    if row["acts_on"] not in ("attention", "tokens"):
        families = "any"
    cells = (row["name"], row["acts_on"], spans, invariant, row["layers"], families, row["cost"], row["source"])
    return dict(zip(HEADINGS, cells, strict=True))
