"""Imports follow the layers in pyproject.toml, type-only imports included."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_contracts_of_imports_hold():
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    ended = subprocess.run([sys.executable, "-c", program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("stub", sorted((ROOT / "ragbias").rglob("__init__.pyi")), ids=lambda stub: stub.parent.name)
def test_every_name_of_a_stub_is_there(stub):
    package = import_module(".".join(stub.parent.relative_to(ROOT).parts))
    names = [line.split()[-1] for line in stub.read_text().splitlines() if line.startswith("from")]
    assert set(package.__all__) <= {*names} <= {*dir(package)}
    assert all(getattr(package, name) is not None for name in names)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        getattr(package, "no_such_name")  # noqa: B009
