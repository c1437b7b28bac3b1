"""Fixtures for the programs of ``studies``."""

import json
import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ragbias import DebiasedLM
from studies.windows import Row
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


@pytest.fixture(scope="session")
def plain_lm(llama: PreTrainedModel, byte_tokenizer: PreTrainedTokenizerFast) -> DebiasedLM:
    """A model with random weights and no method."""
    return DebiasedLM(llama, byte_tokenizer, method="none")


@pytest.fixture
def make_rows() -> Callable[..., list[Row]]:
    """Make three prompts with the same prefix, and windows, suffixes and targets of different lengths."""

    def make(windows: int = 3) -> list[Row]:
        rng = random.Random(0)

        def ids(length: int) -> list[int]:
            return [rng.randrange(10, 500) for _ in range(length)]

        prefix = ids(7)
        return [Row(prefix, [ids(rng.randint(3, 9)) for _ in range(windows)], ids(4 + n), ids(2 + n)) for n in range(3)]

    return make
