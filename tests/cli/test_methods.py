"""The list of methods and the advice in the terminal."""

import json

from ragbias.methods import DEFAULT_METHOD, METHODS
from studies.advice import KINDS


def test_every_method_is_described_in_one_sentence(cli, tmp_path):
    code, printed, _ = cli("methods", "--json", tmp_path / "methods.json")
    rows = json.loads((tmp_path / "methods.json").read_text())
    assert code == 0 and list(rows) == list(METHODS)
    words = " ".join(printed.split())
    for name, row in rows.items():
        description = row["description"]
        assert (
            description.endswith(".")
            and description[0].isupper()
            and "`" not in description
            and len(description) <= 120
        )
        assert f"{name} {description.split()[0]}" in words
    assert max(map(len, printed.splitlines())) <= 80 and "--advice" in printed


def test_advice_covers_every_kind_of_task_and_the_default(cli, tmp_path):
    code, printed, _ = cli("methods", "--advice", "--json", tmp_path / "advice.json")
    assert code == 0 and all(f"{kind}: " in printed for kind in KINDS)
    assert printed.startswith("The recommendations cover studies of gemma3-270m and smollm2 without readers. ")
    assert f"The default method, {DEFAULT_METHOD}, " in printed
    assert len(printed.splitlines()) <= 20 and max(map(len, map(str.rstrip, printed.splitlines()))) <= 80
    assert [each["kind"] for each in json.loads((tmp_path / "advice.json").read_text())] == list(KINDS)


def test_methods_are_described_in_80_columns_without_code_marks(cli):
    for name in METHODS:
        _, printed, _ = cli("methods", name)
        assert max(map(len, printed.splitlines())) <= 80 and "`" not in printed
    assert "\n- For tokens of document i, the importance of another document j is" in cli("methods", "pine")[1]


def test_advice_is_about_all_methods(cli):
    code, _, errors = cli("methods", "--advice", "pine")
    assert code == 2 and "leave out --advice or 'pine'" in errors
