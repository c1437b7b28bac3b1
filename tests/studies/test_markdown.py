"""Markdown tables."""

from studies.markdown import markdown_table


def test_names_of_a_table_are_escaped():
    text = markdown_table(["method", "mean"], [["a|b\n# <b>x</b>", "0.6"]])
    assert text.splitlines()[2] == "| a\\|b # \\<b\\>x\\</b\\> | 0.6 |"
