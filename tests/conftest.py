"""Models for tests: random weights, built from configs, kept for the whole run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# before triton is imported, which torch does on some machines; TRITON_INTERPRET=0 runs its kernels on a CUDA device
os.environ["TRITON_INTERPRET"] = os.environ.get("TRITON_INTERPRET", "1")

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ragbias import DebiasedLM
from ragbias.cli import main
from training import tokenizer as tiny_tokenizer

torch.set_num_threads(1)  # on models this small, more threads wait for each other

VOCABULARY = 300
MOE = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
# every declared family, with what is special about it: sliding layers that forget, partial rotary, layers without rope
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": dict(sliding_window=24),
    "mixtral": MOE,
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "gemma": {},
    "gemma2": dict(sliding_window=24, query_pre_attn_scalar=16, attn_logit_softcapping=5.0),
    "gemma3_text": dict(
        sliding_window=24,
        query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    ),
    "phi3": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
    "olmo2": {},
    "granite": dict(attention_multiplier=0.2),
    "smollm3": dict(no_rope_layers=[1, 0, 1, 1]),
    "gpt_neox": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25)),
    "cohere": dict(use_qk_norm=True),
    "glm": {},
    "mpt": dict(d_model=64, n_heads=4, n_layers=4, max_seq_len=512, expansion_ratio=2),
}


def random_model(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model of a few layers with grouped-query heads and weights large enough that attention is far from uniform."""
    settings: dict[str, Any] = dict(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    if family == "mpt":
        settings = dict(vocab_size=VOCABULARY)
    settings |= {**FAMILIES.get(family, {}), **changes}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=1.0 if "embed" in name else 0.25)
    return model.eval()


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs ``ragbias`` with arguments in this process; gives the exit code, and what went to stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ragbias", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture(scope="session")
def llama() -> PreTrainedModel:
    return random_model("llama")


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so any text fits the small vocabulary; adds BOS as Llama's does."""
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
def small_lm() -> DebiasedLM:
    """Random weights under the embedded model's vocabulary and chat template, with a window for many documents."""
    tokenizer = tiny_tokenizer.build()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return DebiasedLM(model, tokenizer)


@contextmanager
def fresh_listener(install: Callable[[], None], uninstall: Callable[[], None]) -> Iterator[None]:
    """Inside of it nothing is known of what was retrieved outside, and the other way round."""
    uninstall()
    install()
    yield
    uninstall()
    install()


@pytest.fixture
def lm(llama: PreTrainedModel, byte_tokenizer: PreTrainedTokenizerFast) -> DebiasedLM:
    return DebiasedLM(llama, byte_tokenizer, method="pine", name="random-llama")
