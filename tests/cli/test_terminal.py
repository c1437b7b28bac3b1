"""Terminal output shows names, paths and answers unchanged, including brackets."""

import io
import itertools
import re
import warnings

import pytest
from rich.table import Table

from ragbias.cli import terminal
from ragbias.errors import DocumentCacheWarning

NAME = "runs/[bold]x[/i] :owl: [/]"


@pytest.fixture
def shown(monkeypatch):
    """The console, and a function that returns its output."""
    written = io.StringIO()
    monkeypatch.setattr(terminal.console, "_file", written)
    return written.getvalue


def test_a_line_a_table_and_a_title_show_brackets_as_they_are(shown):
    table = Table(title=NAME)
    table.add_column(f"head {NAME}", no_wrap=True)
    table.add_row(f"cell {NAME}")
    terminal.console.print(f"Written: {NAME}")
    terminal.console.print(table)
    output = shown()
    for each in (f"Written: {NAME}", f"head {NAME}", f"cell {NAME}"):
        assert each in output
    assert output.count(NAME) == 4


def test_progress_and_status_show_brackets_as_they_are(shown, monkeypatch):
    monkeypatch.setattr(terminal.console, "_force_terminal", True)
    monkeypatch.setattr(terminal.console, "_width", 120)
    with terminal.progress() as bar:
        bar.add_task(NAME, total=1)
    assert NAME in shown()


def test_without_a_terminal_long_work_prints_its_progress(shown, monkeypatch):
    monkeypatch.setattr(terminal, "MAX_SILENCE", 0.0)
    with terminal.progress() as bar:
        task = bar.add_task("", total=3)
        for _ in range(3):
            bar.update(task, advance=1, description="pine")
    assert shown().splitlines()[:3] == ["pine ...", "pine: 2 of 3", "pine: 3 of 3"]


def test_without_a_terminal_progress_is_printed(shown, monkeypatch):
    monkeypatch.setattr(terminal, "MAX_SILENCE", 0.0)
    with terminal.progress() as bar:
        task = bar.add_task("screening", total=2)
        bar.update(task, advance=1)
    assert shown().splitlines()[0] == "screening: 1 of 2"


def test_without_a_terminal_long_work_prints_the_time_left(shown, monkeypatch):
    monkeypatch.setattr(terminal, "MAX_SILENCE", 0.0)
    with terminal.progress() as bar:
        clock = itertools.count(step=10)
        monkeypatch.setattr(bar, "get_time", lambda: float(next(clock)))
        task = bar.add_task("pine", total=9)
        for _ in range(4):
            bar.update(task, advance=1, description="pine ")
    assert re.search(r"pine : 4 of 9, about [1-9][0-9]* s left", shown())


def test_our_warnings_are_one_line_and_others_name_their_file(cli, monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # restored at the end
    cli("--version")
    line = warnings.formatwarning("pine runs without its cache", DocumentCacheWarning, "main.py", 3)
    assert line == "ragbias: warning: pine runs without its cache\n"
    assert warnings.formatwarning("old", DeprecationWarning, "main.py", 3).startswith("main.py:3: Deprecation")
