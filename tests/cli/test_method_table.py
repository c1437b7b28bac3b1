"""The table of methods in the docs is the generated one, and says what the classes do."""

from pathlib import Path

from ragbias.cli.method_table import as_markdown, method_table
from ragbias.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "methods.md"


def test_the_docs_hold_the_generated_table():
    text = DOCS.read_text()
    table = text.split("<!-- matrix -->\n")[1].split("<!-- /matrix -->")[0]
    assert table == as_markdown(), "run `ragbias methods --markdown` and put its output between the marks"


def test_every_method_has_its_row_and_its_class_in_the_docs():
    rows = {row.name: row for row in method_table()}
    assert list(rows) == list(METHODS)
    for row in rows.values():
        assert row.documentation and row.cost
        assert row.name == "none" or row.source
        assert row.name == "none" or row.constructor.split("(")[0] in DOCS.read_text()


def test_rotary_methods_leave_alibi_out():
    families = {row.name: row.families for row in method_table()}
    assert "mpt" in families["pine"] and "mpt" not in families["self-extend"]
