"""``python -m studies.NAME --help`` fits a terminal and shows the defaults."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

import studies

FOLDER = Path(studies.__file__).parent
PROGRAMS = [path.stem for path in sorted(FOLDER.glob("*.py")) if "def main(" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_fits_80_columns_and_shows_defaults(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit):
        import_module(f"studies.{name}").main()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "--seed" not in "".join(lines) or "(default: 0)" in "".join(lines)
    assert not [line for line in lines if line.split()[1:] == [] and line.startswith("  --")]
