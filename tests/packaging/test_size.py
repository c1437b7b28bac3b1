"""The code stays within its size budget, and tests have short names."""

import importlib.util
import re
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("figures", Path(__file__).with_name("figures.py"))
figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(figures)


@pytest.mark.parametrize(("folder", "budget"), figures.BUDGETS.items())
def test_lines_stay_within_the_budget(folder, budget):
    assert figures.lines(folder) <= budget


def test_lines_by_package_add_up():
    assert sum(figures.lines_by_package().values()) == figures.lines("ragbias")


def test_no_file_exceeds_400_lines():
    long = [path for root in ("ragbias", "integrations") for path in (figures.ROOT / root).rglob("*.py")]
    assert [path.name for path in long if len(path.read_text().splitlines()) > 400] == []


def test_names_of_tests_are_shorter_than_60_characters():
    files = (figures.ROOT / "tests").rglob("test_*.py")
    names = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert "test_no_file_exceeds_400_lines" in names
    assert [name for name in sorted(names) if len(name) >= 60] == []


@pytest.mark.parametrize(("framework", "source"), figures.REQUESTS)
def test_a_first_request_passes_through_few_files(framework, source):
    modules = figures.modules_of(framework, source)
    assert "ragbias.lm" in modules and "ragbias.methods.pine" in modules
    assert len(modules) <= figures.FILES_OF_A_REQUEST, modules


def test_a_missing_package_is_reported_with_a_remedy():
    with pytest.raises(SystemExit, match=r"No module named 'no_such_package'; run it with .* \.venv/bin/python"):
        figures.run("-c", "import no_such_package")


def test_another_failure_shows_its_traceback():
    with pytest.raises(SystemExit, match=r"Traceback[\s\S]+ZeroDivisionError"):
        figures.run("-c", "1 / 0")
