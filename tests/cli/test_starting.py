"""The command line starts quickly and imports optional packages only for commands that need them."""

import importlib.metadata
import os
import re
import resource
import subprocess
import sys

import pytest

from ragbias.extras import EXTRAS

HEAVY = {"torch", "transformers", "numpy", "matplotlib", "scipy", "jinja2", "yaml"}
# the command line itself needs typer and what comes with it; torch and transformers bring the other two
TYPER = {re.split(r"\W", each)[0] for each in importlib.metadata.requires("typer") or []}
NO_EXTRA = {*EXTRAS["cli"], *TYPER, "jinja2", "yaml"}
PROGRAM = """
import sys
sys.modules.update(dict.fromkeys({blocked!r}))  # as if not installed
sys.argv = ["ragbias", *{arguments!r}]
try:
    from ragbias.cli import main
    main()
finally:
    print(*sorted({{name.partition(".")[0] for name, module in sys.modules.items() if module}}), file=sys.stderr)
"""


def run(*arguments, blocked=()):
    """Run a command. Return its output, exit code, error, imported packages and processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = PROGRAM.format(blocked=sorted(blocked), arguments=arguments)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    *errors, imported = ended.stderr.splitlines()
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ended.stdout, ended.returncode, "\n".join(errors), set(imported.split()), seconds


@pytest.fixture(scope="module")
def compiled():
    """Write the byte code of all imports, as the first run in a new environment does."""
    run("methods", "pine")


@pytest.mark.serial
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("arguments", [["--help"], [], ["--version"], ["methods"], ["methods", "pine"]], ids=" ".join)
def test_help_and_methods_take_less_than_a_second(arguments):
    output, code, errors, imported, seconds = run(*arguments)
    assert (code, errors) == (0, "") and output
    assert not imported & HEAVY
    assert seconds < 1


@pytest.mark.parametrize(
    "command", ["adapt", "demo", "ask", "audit", "bench", "report", "calibrate", "methods", "cache", "serve"]
)
def test_help_of_a_command_needs_neither_torch_nor_an_extra(command):
    output, code, _, imported, _ = run(command, "--help")
    assert code == 0 and command in output
    assert not imported & HEAVY


def test_only_the_notice_about_kernels_is_silent():
    program = """if True:
        import logging, sys
        from ragbias.cli import main
        sys.argv = ["ragbias", "--version"]
        try:
            main()
        finally:
            for name in ("bitsandbytes.backends.cpu.ops", "bitsandbytes", "transformers"):
                logging.getLogger(name).warning("%s warns", name)
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "bitsandbytes warns\ntransformers warns\n")


def test_version_names_what_answers_depend_on():
    output, *_ = run("--version")
    names = [each.rpartition(" ")[0] for each in output.strip().split(", ")]
    assert names == ["ragbias", "torch", "transformers", "Python"]
    assert output.startswith(f"ragbias {importlib.metadata.version('ragbias')}, ")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["methods"], None),
        (["ask", "Why?", "--documents=a.txt", "--model=tiny"], "ask"),
    ],
)
def test_a_missing_extra_is_named_with_its_install_command(tmp_path, monkeypatch, arguments, extra):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Heron Mill opens in spring.")
    extras = EXTRAS if extra is None else [extra]
    blocked = {module for each in extras for module in EXTRAS[each]} - NO_EXTRA
    _, code, errors, *_ = run(*arguments, blocked=blocked)
    if extra is None:
        assert (code, errors) == (0, "")
    else:
        assert code == 2 and errors.count("\n") == 0
        assert f"pip install 'ragbias[{extra}]'" in errors.replace('"', "'")


def test_a_broken_command_of_another_distribution_is_skipped(tmp_path, monkeypatch):
    about = tmp_path / "plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[ragbias.commands]\nbroken = no_such_module:run\nmethods = json:loads\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    command = [sys.executable, "-m", "ragbias", "methods"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "pine" in done.stdout
    assert done.stderr == (
        "ragbias: warning: the command 'broken' cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_module'\n"
    )
