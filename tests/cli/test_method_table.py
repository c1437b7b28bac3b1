"""The docs' table of methods is the generated one and agrees with the classes."""

import runpy
from pathlib import Path

from ragbias.cli.methods import describe_methods, format_cells
from ragbias.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "methods.md"


def test_the_docs_hold_the_generated_table():
    text = DOCS.read_text()
    table = text.split("<!-- matrix -->\n")[1].split("<!-- /matrix -->")[0]
    generated = runpy.run_path(str(DOCS.parents[1] / "hooks.py"))["methods_table"]()
    assert table == generated, "run `python docs/hooks.py` and put its output between the marks"


def test_every_method_has_its_row_and_its_class_in_the_docs():
    rows = describe_methods()
    assert list(rows) == list(METHODS)
    for name, row in rows.items():
        assert row["documentation"] and row["cost"]
        assert name == "none" or row["source"]
        assert name == "none" or row["constructor"].split("(")[0] in DOCS.read_text()


def test_separate_documents_need_a_supported_family():
    families = {name: format_cells(row)["families"] for name, row in describe_methods().items()}
    assert [families[name] for name in ("pced", "mixture", "pcw")] == ["all"] * 3
    assert [families[name] for name in ("none", "permutation-vote", "icr")] == ["any"] * 3


def test_rotary_methods_leave_alibi_out():
    rows = describe_methods()
    assert "mpt" in rows["pine"]["families"] and "mpt" not in rows["self-extend"]["families"]
