"""The code stays within its size budget, and a request passes through few files."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("figures", Path(__file__).with_name("figures.py"))
figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(figures)


@pytest.mark.parametrize(("folder", "budget"), figures.BUDGETS.items())
def test_lines_stay_within_the_budget(folder, budget):
    count = figures.lines(folder)
    assert count <= budget, (
        f"{folder} has {count:,} lines, but its budget is {budget:,}: shorten the code, or if the feature is worth its "
        "lines, raise BUDGETS in tests/packaging/figures.py in the same commit"
    )


def test_no_file_exceeds_400_lines():
    files = [path for root in ("ragbias", "evaluation", "integrations") for path in (figures.ROOT / root).rglob("*.py")]
    assert [path.name for path in files if len(path.read_text().splitlines()) > 400] == []


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "source"), figures.REQUESTS)
def test_a_first_request_passes_through_few_files(framework, source):
    modules = figures.modules_of(framework, source)
    assert "ragbias.lm" in modules and "ragbias.methods.pine" in modules
    assert len(modules) <= figures.FILES_OF_A_REQUEST, modules
