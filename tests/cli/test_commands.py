"""Commands as typed: output and errors."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.gguf_files import write_gguf


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ask", "q", "--documents", "/nonexistent", "--model", "tiny"], "/nonexistent: No such file"),
        (["ask", "q\udcff", "--documents", "/nonexistent", "--model", "tiny"], "the question contains"),
        (["ask", "q", "--documents", __file__, "--model", ""], "no model given; name one"),
        (["demo", "--model", "tiny", "--questions", "4"], "Invalid value for '--questions'"),
        (["methods", "--json", "/nonexistent/x.json"], "/nonexistent is not a folder"),
        (["demo", "--model", "/nonexistent/model"], "/nonexistent/model"),
    ],
)
def test_bad_input_ends_with_code_2_and_says_what_is_wrong(cli, arguments, words):
    code, _, errors = cli(*arguments)
    assert code == 2
    assert words in " ".join(errors.replace("│", " ").split())


def test_ask_refuses_an_unknown_method_before_loading_a_model(cli):
    code, output, errors = cli("ask", "q", "--documents", __file__, "--model", "tiny", "--method", "pin")
    assert (code, output) == (2, "") and "unknown method 'pin'" in errors


def test_methods_are_listed_and_written(cli, tmp_path):
    code, output, _ = cli("methods", "--json", tmp_path / "m.json")
    assert code == 0 and "pine" in output
    assert set(json.loads((tmp_path / "m.json").read_text())) >= {"pine", "none", "channel-scaling"}


def test_ask_answers_from_files(cli, tmp_path):
    (tmp_path / "a.txt").write_text("The mascot of Heron Mill is a brass owl.\n\nHeron Mill opens in spring.")
    (tmp_path / "b.md").write_text("The mascot of Ember Abbey is a tin whale.")
    out = tmp_path / "out.json"
    arguments = ["--documents", tmp_path, "--model", "tiny", "--json", out]
    code, output, _ = cli("ask", "What is the mascot of Heron Mill?", *arguments)
    assert code == 0 and json.loads(out.read_text())["text"].strip() in output
    assert output.startswith("Model: tiny\n") and out.read_text().startswith('{\n  "model": "tiny"')
    written = json.loads(out.read_text())
    assert written["report"]["method_ran"] == "pine"
    assert "[1] The mascot of Heron Mill is a brass owl." in output
    assert written["sources"] == ["a.txt", "b.md"] and "(a.txt)" in output and "(b.md)" in output


def test_ask_retrieves_no_more_chunks_than_the_window_holds(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("RAGBIAS_CACHE", str(tmp_path / "cache"))
    model, out = write_gguf(tmp_path / "small.gguf"), tmp_path / "out.json"  # a window of 256 characters
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(f"Heron Mill has {number} owls.")
    ask = ["ask", "What?", "--documents", tmp_path, "--model", model, "--max-new-tokens", "3", "--json", out]
    assert cli(*ask)[0] == 0
    assert len(json.loads(out.read_text())["documents"]) == 4
    code, _, errors = cli(*ask, "--k", "6")
    assert code == 2 and "in the model's window of" in " ".join(errors.split())


@pytest.mark.parametrize("command", [["ask", "What is it?", "--documents", "."], ["demo"]], ids=" ".join)
def test_a_command_without_a_model_says_how_to_name_one(cli, command):
    code, _, errors = cli(*command)
    assert code == 2 and "no model given; name one, e.g. --model smollm2; expected 'tiny'" in errors


def test_only_the_package_names_the_default_method():
    root = Path(__file__).parents[2]
    files = [*(root / "ragbias/cli").glob("*.py"), *(root / "deploy").iterdir()]
    assert [path.name for path in files if re.search("Default: pine|:-pine", path.read_text())] == []


def test_the_environment_names_the_method_to_serve(cli, monkeypatch):
    monkeypatch.setenv("RAGBIAS_METHOD", "pin")  # as deploy/compose.yaml does
    code, _, errors = cli("serve", "tiny")
    assert code == 2 and "unknown method 'pin'" in errors


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_the_command_in_one_line(tmp_path):
    command = [sys.executable, "-m", "ragbias", "bench", "--model=tiny", "--task=tiny", "--methods=none", "--no-cost"]
    process = subprocess.Popen(
        [*command, f"--out={tmp_path / 'run'}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "Model: tiny\n"
    assert process.stdout.readline() == "tiny tiny ...\n"  # it has answered the first questions
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "ragbias: interrupted\n"
    assert "the same command resumes the run" in " ".join(output.split())
