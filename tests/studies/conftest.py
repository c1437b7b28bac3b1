"""Fixtures for the programs of ``studies``."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from support.random_models import SIZES


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


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Path of the configuration of a model that is small enough to measure quickly."""
    path = tmp_path / "model.json"
    about = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=200, num_hidden_layers=2)
    path.write_text(json.dumps(about | SIZES | dict(max_position_embeddings=400)))
    return str(path)
