"""Fill the tables of options and methods in the reference when the site is built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from ragbias.cli import app
from ragbias.cli.methods import HEADINGS, describe_method, format_cells
from ragbias.methods import METHODS

MARK = re.compile(r"<!-- options: ([\w -]+?) -->")
METHODS_MARK = "<!-- methods -->"
BOUNDS = re.compile(r"[\d,]+ to ")


def commands() -> dict[str, Any]:
    """Return every command by name; those of groups as "cache warm"."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        found |= {f"{name} {each}": inner[each] for each in inner} or {name: command}
    return found


def options_table(command: Any) -> str:
    """Return a Markdown table with a row for each argument and option of a command."""
    lines = ["| Option | Default | Meaning |", "|---|---|---|"]
    for option in command.params:
        is_option = option.param_type_name == "option"
        shown = max(option.opts, key=len) if is_option else option.name.upper()
        default = option.default
        if off := "".join(option.secondary_opts):
            default = shown if default else off
            shown = f"{shown}`, `{off}"
        if isinstance(default, (str, int, float, Path)) and not isinstance(default, bool):
            default = f"`{default}`" if default != "" else ""
        else:
            default = "required" if option.required else ""
        words = (option.help or "").split()
        if BOUNDS.match(option.metavar or ""):
            words.append(f"From {option.metavar}.".replace(", ....", " each."))
        lines.append(f"| `{shown}` | {default} | {' '.join(words)} |")
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each mark of a page with its table, of a command's options or of the methods."""
    if METHODS_MARK in markdown:
        markdown = markdown.replace(METHODS_MARK, methods_table())
    return MARK.sub(lambda mark: options_table(commands()[mark[1]]), markdown)


def methods_table() -> str:
    """Return the table of this package's methods, with links to the sources."""
    shown = [name for name in HEADINGS if not name.startswith("cost")]
    lines = [shown, ["---"] * len(shown)]
    for row in map(describe_method, METHODS.values()):
        cells = format_cells(row)
        cells["method"] = f"`{row['name']}`"
        cells["source"] = re.sub(
            r"arXiv (\d+\.\d+)", r"[\1](https://arxiv.org/abs/\1)", row["source"]
        )
        lines.append([cells[name] for name in shown])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
