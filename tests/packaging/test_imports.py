"""Imports run one way, as the contracts in pyproject.toml have it; those for types count."""

import ast
import subprocess
import sys
from pathlib import Path

import ragbias

ROOT = Path(__file__).parents[2]


def test_the_contracts_of_imports_hold():
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    ended = subprocess.run([sys.executable, "-c", program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_type_checkers_know_every_public_name():
    tree = ast.parse((ROOT / "ragbias" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    names = {each.asname for node in block.body if isinstance(node, ast.ImportFrom) for each in node.names}
    assert names - {None} == set(ragbias.__all__)
