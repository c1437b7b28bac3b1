"""A missing optional package causes a one-line error with the command that installs it."""

import subprocess
import sys

import pytest

from ragbias.errors import MissingExtraError, RagBiasError
from ragbias.extras import require

IMPORT = """
import importlib, sys
sys.modules.update(dict.fromkeys({packages!r}))  # None: not to be imported
for module in {modules!r}:
    try:
        importlib.import_module("ragbias.evaluation." + module)
    except ImportError as error:
        print(type(error).__name__, error)
"""


def import_errors(packages: list[str], modules: tuple[str, ...]) -> list[str]:
    """Import modules without some packages. Return one line for each import that fails."""
    code = IMPORT.format(packages=packages, modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_an_installed_module_is_given():
    assert require("json.decoder", "bench") is sys.modules["json.decoder"]


def test_the_error_is_one_of_ragbias_and_an_import_error():
    with pytest.raises(MissingExtraError, match=r"^no_such cannot be imported \(.*\); install it with: pip") as raised:
        require("no_such", "bench")
    assert isinstance(raised.value, RagBiasError) and isinstance(raised.value, ImportError)


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_command_line_names_its_extra_in_one_line(package):
    code = f"import sys; sys.modules[{package!r}] = None; from ragbias.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{package} cannot be imported" in line
    assert line.endswith("pip install 'ragbias[cli]' (from a clone: pip install -e '.[cli]')")


@pytest.mark.parametrize(
    ("package", "modules"),
    [("jinja2", ("report.html",)), ("matplotlib", ("report.figures", "report.charts", "report.html"))],
)
def test_a_module_without_its_package_names_the_install_command(package, modules):
    lines = import_errors([package], modules)
    assert len(lines) == len(modules)
    for line in lines:
        assert line.startswith(f"MissingExtraError {package} cannot be imported")
        assert line.endswith("pip install 'ragbias[bench]' (from a clone: pip install -e '.[bench]')")


def test_modules_shared_with_the_bench_need_no_extra():
    shared = ("runs", "measures.aggregates", "tasks", "report.tables")
    assert import_errors(["jinja2", "matplotlib"], (*shared, "prompts")) == []
