"""Output paths are checked before any work. The models and questions named here do not exist."""

import os

import pytest

NOWHERE = ["--questions", "/nonexistent.jsonl", "--model", "/nonexistent/model"]
COMMANDS = {
    ("audit", "--html"): NOWHERE,
    ("audit", "--json"): NOWHERE,
    ("report", "--html"): ["/nonexistent"],
    ("ask", "--json"): ["q", "--documents", "/nonexistent", "--model", "tiny"],
    ("methods", "--json"): [],
}


@pytest.fixture
def refused(cli):
    def printed(*arguments):
        code, _, errors = cli(*arguments)
        assert code == 2
        return " ".join(errors.replace("│", " ").split())

    return printed


@pytest.mark.parametrize(("command", "option"), COMMANDS, ids=" ".join)
def test_a_folder_and_a_file_in_no_folder_are_refused(refused, tmp_path, monkeypatch, command, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").mkdir()
    rest = COMMANDS[command, option]
    assert "a.png is a folder; expected the name of a file" in refused(command, *rest, option, "a.png")
    assert "no is not a folder; create it first" in refused(command, *rest, option, "no/a.png")


@pytest.mark.parametrize(
    "command",
    [["demo", "--model", "/nonexistent"], ["bench", "--task", "tiny", "--methods", "none", "--model", "/nonexistent"]],
)
def test_a_file_is_no_folder_for_results(refused, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").touch()
    assert "out is a file; give a folder" in refused(*command, "--out", "out")


@pytest.mark.parametrize(("command", "option"), [*COMMANDS, ("calibrate", "--out"), ("ask", "--json")], ids=" ".join)
def test_a_file_that_no_command_wrote_is_not_overwritten(refused, tmp_path, monkeypatch, command, option):
    monkeypatch.chdir(tmp_path)
    name = "mine.json"
    (tmp_path / name).write_text("mine")
    arguments = COMMANDS.get((command, option), ["--model", "tiny"])
    assert f"{name} exists, and ragbias did not write it" in refused(command, *arguments, option, name)
    assert (tmp_path / name).read_text() == "mine"


def test_audit_and_demo_do_not_overwrite_other_files(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text("{}")
    audit = ["audit", "--questions", "q.jsonl", "--model", "tiny"]
    assert "q.jsonl exists" in refused(*audit, "--json", "q.jsonl")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bias.png").write_text("mine")
    assert "out/bias.png exists" in refused("demo", "--model", "tiny", "--out", "out")
    (tmp_path / "demo-output" / "tiny").mkdir(parents=True)
    (tmp_path / "demo-output" / "tiny" / "bias.png").write_text("mine")
    assert "demo-output/tiny/bias.png exists" in refused("demo", "--model", "tiny")  # each model has its folder


def test_a_read_only_file_is_refused_with_the_reason(refused, tmp_path):
    path = tmp_path / "m.json"
    path.touch(0o400)
    if os.access(path, os.W_OK):
        pytest.skip("this user can write all files")
    assert "m.json cannot be written: no permission, or a read-only disk; give" in refused("methods", "--json", path)


def test_a_command_overwrites_its_own_file_others_by_force(cli, refused, tmp_path, monkeypatch):
    monkeypatch.setenv("RAGBIAS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "m.json"
    write = ("methods", "--json", path)
    assert cli(*write)[0] == cli(*write)[0] == 0
    path.write_text(path.read_text() + "mine")
    assert "m.json exists" in refused(*write)
    assert cli(*write, "--force")[0] == cli(*write)[0] == 0
    assert not path.read_text().endswith("mine")
