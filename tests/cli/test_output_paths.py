"""Where a command shall write is checked before it works: the models and questions named here do not exist."""

import pytest

NOWHERE = ["--questions", "/nonexistent.jsonl", "--model", "/nonexistent/model"]
COMMANDS = {
    ("speed", "--plot"): [],
    ("audit", "--html"): NOWHERE,
    ("audit", "--json"): NOWHERE,
    ("report", "--html"): ["/nonexistent"],
    ("report", "--csv"): ["/nonexistent"],
    ("report", "--markdown"): ["/nonexistent"],
    ("ask", "--json"): ["q", "--documents", "/nonexistent", "--model", "tiny"],
    ("methods", "--json"): [],
}


@pytest.fixture
def refused(cli):
    def said(*arguments):
        code, _, errors = cli(*arguments)
        assert code == 2
        return " ".join(errors.replace("│", " ").split())

    return said


@pytest.mark.parametrize(("command", "option"), COMMANDS, ids=" ".join)
def test_a_folder_and_a_file_in_no_folder_are_refused(refused, tmp_path, monkeypatch, command, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").mkdir()
    rest = COMMANDS[command, option]
    assert "a.png is a folder; expected the name of a file" in refused(command, *rest, option, "a.png")
    assert "no is not a folder; create it first" in refused(command, *rest, option, "no/a.png")


@pytest.mark.parametrize("name", ["noext", "a.xyz", "a.json"])
def test_plots_are_pictures_only(refused, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert f"{name} does not end with .png, .svg, .pdf" in refused("speed", "--plot", name)


@pytest.mark.parametrize(
    "command",
    [["demo", "--model", "/nonexistent"], ["bench", "--task", "tiny", "--methods", "none", "--model", "/nonexistent"]],
)
def test_a_file_is_no_folder_for_results(refused, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").touch()
    assert "out is a file; give a folder" in refused(*command, "--out", "out")
