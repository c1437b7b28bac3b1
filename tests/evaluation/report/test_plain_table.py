"""Names of methods in narrow columns."""

import pytest
from rich.console import Console

from ragbias.evaluation.report.plain_table import MethodName, plain_table


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("pine", ["pine"]),
        ("position-interpolation", ["position-", "interpolation"]),
        ("attention-sorting(rounds=3)", ["attention-sorting", "(rounds=3)"]),
        ("self-extend(group=2,window=512)", ["self-extend", "(group=2,window=512)"]),
    ],
)
def test_a_long_name_is_folded_at_hyphens_and_before_its_parameters(name, lines):
    table = plain_table("title", "method", "figure")
    table.add_row(MethodName(name), "x" * 19)
    console = Console(width=41, force_terminal=False)
    with console.capture() as said:
        console.print(table)
    assert [line.rstrip(" x") for line in said.get().splitlines()[2:]] == lines
