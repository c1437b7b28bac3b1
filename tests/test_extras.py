"""A missing optional package causes a one-line error with the command that installs it."""

import subprocess
import sys

import pytest

from ragbias.errors import MissingExtraError, RagBiasError
from ragbias.extras import require


def test_an_installed_module_is_given():
    assert require("json.decoder", "serve") is sys.modules["json.decoder"]


def test_the_error_is_one_of_ragbias_and_an_import_error():
    with pytest.raises(MissingExtraError, match=r"^no_such cannot be imported \(.*\); install it with: pip") as raised:
        require("no_such", "serve")
    assert isinstance(raised.value, RagBiasError) and isinstance(raised.value, ImportError)


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_command_line_names_its_extra_in_one_line(package):
    code = f"import sys; sys.modules[{package!r}] = None; from ragbias.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{package} cannot be imported" in line
    assert line.endswith("pip install 'ragbias[cli]' (from a clone: pip install -e '.[cli]')")
