"""The reference pages are complete: each option of the command line, each field of a report, each error.

``python tests/docs/test_reference.py`` renews the tables of options.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from ragbias import errors
from ragbias.cli import app
from ragbias.generation.report import Report

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
COMMANDS: dict[str, Any] = {}  # those of groups too, as "experiment attention"
for name, each in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
    COMMANDS |= {f"{name} {inner}": its for inner, its in getattr(each, "commands", {}).items()} or {name: each}
BOUNDS = re.compile(r"[\d,]+ to ")
TABLE = re.compile(r"(<!-- options: ([\w -]+?) -->\n).*?(<!-- /options -->)", re.DOTALL)


def options_table(name: str) -> str:
    """A row for each argument and option of a command, as ``--help`` has them."""
    lines = ["| option | default | |", "|---|---|---|"]
    for each in COMMANDS[name].params:
        shown = max(each.opts, key=len) if each.param_type_name == "option" else each.name.upper()
        if switched_off := "".join(each.secondary_opts):
            shown = f"{shown}`, `{switched_off}"
        plain = isinstance(each.default, (str, int, float, Path)) and not isinstance(each.default, bool)
        default = f"`{each.default}`" if plain else "required" if each.required else ""
        if switched_off and each.default:
            default = f"`{max(each.opts, key=len)}`"
        words = (each.help or "").split()
        if BOUNDS.match(each.metavar or ""):
            words.append(f"From {each.metavar}.".replace(", ....", " each."))
        lines.append(f"| `{shown}` | {default} | {' '.join(words)} |")
    return "\n".join([*lines, ""])


def renewed(page: str) -> str:
    return TABLE.sub(lambda found: found[1] + options_table(found[2]) + found[3], page)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_a_table(name: str) -> None:
    page = (REFERENCE / "cli.md").read_text()
    assert f"\n## {name}\n" in page
    section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
    assert f"\nragbias {name}" in section
    assert f"<!-- options: {name} -->\n{options_table(name)}" in section, "run `python tests/docs/test_reference.py`"


def test_every_field_of_a_report_is_explained() -> None:
    _, table = (REFERENCE / "report.md").read_text().split("| field |")
    explained = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert explained == [field.name for field in fields(Report)]


def test_every_error_has_its_cause_and_its_remedy() -> None:
    """In the order of the module, each with its base class."""
    defined = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    known = {each.__name__: each.__bases__[0].__name__ for each in defined}
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", (REFERENCE / "errors.md").read_text(), re.M)
    assert {name: base for name, base, *_ in rows} == known
    assert all(cause.strip() and remedy.strip() for *_, cause, remedy in rows)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_what_a_page_outside_the_site_links_to_is_there(page: str) -> None:
    """Links inside the site are checked by ``mkdocs build --strict``."""
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text())
    assert links and [link for link in links if not (ROOT / link).exists()] == []


if __name__ == "__main__":
    path = REFERENCE / "cli.md"
    path.write_text(renewed(path.read_text()))
