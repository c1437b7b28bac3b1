"""Each command of the page on the papers is one: its options are parsed, and so are the methods that it names."""

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import typer

from ragbias.cli import app
from ragbias.interventions import parse_interventions
from ragbias.methods.parse import parse_methods
from ragbias.methods.profiles import find

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"
COMMANDS = sorted(set(re.findall(r"`((?:ragbias|python -m studies\.)[ a-z][^`]* [^`]*)`", PAGE.read_text())))
PAPERS = ("2407.01100", "2406.02536", "2512.13109", "2403.04797", "2310.01427")


def parsed(command: str) -> dict[str, object]:
    """The arguments of a command, as the command line or a study reads them."""
    if command.startswith("python"):
        _, _, module, *words = shlex.split(command)
        return vars(read_by(module, words))
    found, words = typer.main.get_command(app), shlex.split(command)[1:]
    while hasattr(found, "commands"):
        found, *words = found.commands[words[0]], *words[1:]
    return dict(found.make_context(found.name, words).params)


def read_by(module: str, words: list[str]) -> argparse.Namespace:
    """What the parser of a study makes of its arguments; the study does not run."""
    parse, found = argparse.ArgumentParser.parse_args, []

    def only_parse(parser: argparse.ArgumentParser, *given: object) -> None:
        found.append(parse(parser, words))
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patches, pytest.raises(InterruptedError):
        patches.setattr(argparse.ArgumentParser, "parse_args", only_parse)
        import_module(module).main(words)
    return found[0]


@pytest.mark.parametrize("command", COMMANDS, ids=COMMANDS)
def test_the_command_is_one(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    find("tiny").save("profile.json")
    given = parsed(command)
    methods = given.get("methods") or given.get("method")
    if methods and not (command.startswith("ragbias calibrate")):
        assert parse_methods(methods, "tiny")
    for text in given.get("intervene") or ():
        assert parse_interventions(text)


def test_the_page_is_of_the_five_papers_and_every_row_says_how_or_why_not():
    text = PAGE.read_text()
    assert all(f"arxiv.org/abs/{number}" in text for number in PAPERS) and len(COMMANDS) > 30
    rows = [row for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE) if not row.startswith(("shown", "--"))]
    assert len(rows) > 40
    for row in rows:
        _, how = row.split(" | ")
        assert "`" in how or how.startswith(("no: ", "a drawing; ")), row
