"""The reference pages are complete: each command, each field of a report, each error."""

from __future__ import annotations

import inspect
import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from ragbias import errors
from ragbias.generation.report import Report

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
HOOKS = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
COMMANDS = HOOKS["commands"]()
CLI = (REFERENCE / "cli.md").read_text(encoding="utf-8")


def test_the_page_has_exactly_the_commands() -> None:
    assert sorted(re.findall(r"^## (.+)$", CLI, re.MULTILINE)) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_its_options(name: str) -> None:
    section = CLI.split(f"\n## {name}\n")[1].split("\n## ")[0]
    assert f"\nragbias {name}" in section
    assert f"<!-- options: {name} -->" in section
    built = HOOKS["on_page_markdown"](section)
    assert "<!-- options" not in built
    for parameter in COMMANDS[name].params:
        assert f"| `{max(parameter.opts, key=len)}`" in built or f"| `{parameter.name.upper()}`" in built
        assert parameter.help, f"{name}: {parameter.name} has no help"


def test_every_field_of_a_report_is_explained() -> None:
    _, table = (REFERENCE / "report.md").read_text().split("| field |")
    explained = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert explained == [field.name for field in fields(Report)]


def test_every_error_has_its_cause_and_its_remedy() -> None:
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
