"""Fixtures for all tests: small random models, shared by the whole test run, and the command line."""

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# must be set before triton is imported, which torch may do; TRITON_INTERPRET=0 runs the kernels on a CUDA device
os.environ["TRITON_INTERPRET"] = os.environ.get("TRITON_INTERPRET", "1")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for commands too, which else use all idle cores

import pytest
import torch
from hypothesis import settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from ragbias import DebiasedLM
from ragbias.cli import main
from support.random_models import SIZES, random_model
from support.readers import write_reader
from support.scripted import with_template
from training import tokenizer as tiny_tokenizer

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would ignore Ctrl-C in child processes
gc.disable()  # until all tests are imported, because each full collection visits all imported libraries
torch.set_num_threads(1)  # with such small models, more threads are slower

# every run draws the same examples, so that a rare failure is found where it can be examined: in the weekly run
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.register_profile("random", database=None, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

TESTS = Path(__file__).parent
SLOW = set((TESTS / "slow.txt").read_text().split())  # files that `make test-fast` skips


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).as_posix() in SLOW:
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # what was imported stays


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else Triton reports leaks at exit, below pytest's closing line


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A function that runs ``ragbias`` in this process and returns exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ragbias", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def llama() -> PreTrainedModel:
    return random_model("llama")


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per byte, so that any text fits the small vocabulary. It adds BOS like Llama's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    return fast


@pytest.fixture(scope="session")
def tiny() -> DebiasedLM:
    """The embedded model. Tests that change it load their own."""
    return DebiasedLM.from_pretrained("tiny", method="none")


@pytest.fixture
def reader(tiny: DebiasedLM, tmp_path: Path) -> str:
    """Path of a reader of the embedded model for pcw."""
    return write_reader(tmp_path / "reader", tiny.model)


@pytest.fixture(scope="session")
def small_lm() -> DebiasedLM:
    """A model with random weights, the embedded model's vocabulary and chat template, and a long context window."""
    tokenizer = tiny_tokenizer.build_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        max_position_embeddings=16384,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return DebiasedLM(model, tokenizer)


@pytest.fixture(scope="session")
def tool_lm(small_lm: DebiasedLM) -> DebiasedLM:
    """The small model with a chat template that renders tools."""
    return with_template(small_lm, name="tools")


@pytest.fixture
def lm(llama: PreTrainedModel, byte_tokenizer: PreTrainedTokenizerFast) -> DebiasedLM:
    return DebiasedLM(llama, byte_tokenizer, method="pine", name="random-llama")
