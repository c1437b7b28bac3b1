"""Imports run one way, as the contracts in pyproject.toml have it; those for types count."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_contracts_of_imports_hold():
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    ended = subprocess.run([sys.executable, "-c", program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
