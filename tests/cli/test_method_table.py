"""The docs' table of methods is filled when the site is built, and agrees with the classes."""

import runpy
from pathlib import Path

from ragbias.cli.methods import describe_method, describe_methods, format_cells
from ragbias.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "methods.md"
ROWS = {name: describe_method(method) for name, method in METHODS.items()}  # others may be installed besides


def test_the_page_of_the_methods_gets_a_row_for_each():
    fill = runpy.run_path(str(DOCS.parents[1] / "hooks.py"))["on_page_markdown"]
    _, table = fill(DOCS.read_text()).split("| method | acts on | spans |")
    names = [line.split("`")[1] for line in table.split("\n\n")[0].splitlines()[2:]]
    assert names == list(METHODS)
    assert "| `pine` | attention | yes | yes | all | all | Wang et al., [2407.01100](https://arxiv.org/abs/" in table


def test_every_method_has_its_row_and_its_class_in_the_docs():
    assert list(describe_methods())[: len(METHODS)] == list(METHODS)
    for name, row in ROWS.items():
        assert row["documentation"] and row["cost"]
        assert name == "none" or row["source"]
        assert name == "none" or row["constructor"].split("(")[0] in DOCS.read_text()


def test_separate_documents_need_a_supported_family():
    families = {name: format_cells(row)["families"] for name, row in ROWS.items()}
    assert [families[name] for name in ("pced", "mixture", "pcw")] == ["all"] * 3
    assert [families[name] for name in ("none", "permutation-vote", "icr")] == ["any"] * 3


def test_rotary_methods_leave_alibi_out():
    assert "mpt" in ROWS["pine"]["families"] and "mpt" not in ROWS["self-extend"]["families"]
