"""A fixture for the programs of ``studies``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest


@pytest.fixture
def study(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run ``python -m studies.NAME`` in this process. Return the exit code, stdout and stderr."""

    def run(name: str, *arguments: object) -> tuple[int, str, str]:
        try:
            import_module(f"studies.{name}").main(list(map(str, arguments)))
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
