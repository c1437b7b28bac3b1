"""Failures of commands: one line and code 2 for user errors, a traceback and code 1 for bugs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

import ragbias.cli
from ragbias.cli import describe_error
from ragbias.errors import DataError
from ragbias.files import file_name_in_errors

COMMAND = """
import sys
from pathlib import Path
from ragbias import cli
from ragbias.cli.terminal import write_json
from ragbias.errors import DataError

def broken() -> None:
    {statement}

cli.app.command("broken")(broken)
sys.argv = ["ragbias", {arguments}]
cli.main()
"""


def run(statement, arguments="'broken'"):
    """Return the exit code and standard error of a command that executes this statement."""
    program = COMMAND.format(statement=statement, arguments=arguments)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("raise DataError('q.jsonl,\\n line 3: no JSON')", "ragbias: q.jsonl, line 3: no JSON\n"),
        ("open('/nonexistent/q.jsonl')", "ragbias: /nonexistent/q.jsonl: No such file or directory\n"),
        ("open('/')", "ragbias: /: Is a directory\n"),
        (
            "raise ModuleNotFoundError('No module named peft', name='peft.util')",
            "ragbias: peft cannot be imported (No module named peft); install it with: pip install 'ragbias[adapt]' "
            "(from a clone: pip install -e '.[adapt]')\n",
        ),
    ],
)
def test_what_a_user_can_mend_is_one_line(statement, line):
    assert run(statement) == (2, line)


@pytest.mark.skipif(sys.platform != "linux", reason="writes to /dev/full")
@pytest.mark.parametrize(
    "statement", ["write_json({'a': 1}, Path('/dev/full'))", "cli.list_methods(json_path=Path('/dev/full'))"]
)
def test_a_full_disk_is_reported_with_the_file(statement):
    code, errors = run(f"cli.terminal.console.quiet = True; {statement}")
    assert (code, errors) == (2, "ragbias: /dev/full: No space left on device\n")


@pytest.mark.parametrize(
    "statement",
    ["raise ValueError('boom')", "None + 1", "import no_such_module", "raise OSError('boom')", "assert False"],
)
def test_a_bug_shows_its_traceback(statement):
    code, errors = run(statement)
    assert code == 1
    assert errors.startswith("Traceback (most recent call last):") and "in broken" in errors
    assert "ragbias: " not in errors


@pytest.mark.parametrize("arguments", ["'--traceback', 'broken'", "'broken', '--traceback'"])
def test_the_traceback_of_an_error_is_shown_on_demand(arguments):
    code, errors = run("raise DataError('no JSON')", arguments)
    assert code == 2
    assert errors.startswith("Traceback") and "in broken" in errors
    assert errors.endswith("\nragbias: no JSON\n")


def test_an_interrupted_command_ends_as_in_a_shell():
    assert run("raise KeyboardInterrupt") == (130, "ragbias: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["brodge"], "No such command 'brodge'"),
        (["methods", "--jsn", "x"], "No such option"),
        (["audit", "--orders", "many"], "Invalid value for '--orders'"),
        (["--methods"], "No such option"),
    ],
)
def test_a_mistyped_command_prints_one_line_with_a_help_hint(cli, arguments, line):
    code, output, errors = cli(*arguments)
    assert (code, output) == (2, "")
    assert errors.startswith(f"ragbias: {line}") and errors.rstrip().endswith("--help`")
    assert errors.count("\n") == 1


def test_the_extra_of_the_command_itself_is_named_first():
    missing = ModuleNotFoundError("No module named 'openai'", name="openai")
    assert "ragbias[remote]" in describe_error(missing)
    assert "ragbias[serve]" in describe_error(missing, "serve")


def test_a_command_of_ragbias_eval_names_its_distribution(cli, monkeypatch):
    commands = [command for command in ragbias.cli.app.registered_commands if command.name != "audit"]
    monkeypatch.setattr(ragbias.cli.app, "registered_commands", commands)
    code, _, errors = cli("audit", "--model", "tiny")
    assert code == 2 and "this command needs ragbias-eval: pip install ragbias-eval" in errors


def test_a_long_message_is_cut():
    assert len(describe_error(DataError("no " * 10_000))) == 600
    assert describe_error(typer.BadParameter("x " * 10_000)).endswith("...")


def test_errors_that_name_their_file_keep_it(tmp_path):
    with pytest.raises(FileNotFoundError) as raised, file_name_in_errors(tmp_path):
        Path("/nonexistent/a").read_text()
    assert raised.value.filename == "/nonexistent/a"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device exists")
def test_a_server_without_its_device_ends_in_one_line():
    command = [sys.executable, "-m", "ragbias", "serve", "tiny", "--port", "0", "--device", "cuda:7"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("ragbias: device='cuda:7' cannot be used here")
    assert "Traceback" not in ended.stderr
