"""The measured model: random weights at a built-in shape or from a config file, or a loaded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel

from ragbias.binding.architectures import family_of
from ragbias.errors import ArgumentError
from ragbias.methods import SIW, ChannelScaling, Method, MsPoE, get
from ragbias.models import local_path
from ragbias.models.loading import refuse_irregular

SHAPES: dict[str, dict[str, Any]] = {
    "1b": dict(
        hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, head_dim=64
    ),
    "8b": dict(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128
    ),
}  # fmt: skip
# a full vocabulary's head would outweigh two layers in decoding, and hide the cost of a method
VOCABULARY = 4096
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def shaped(shape: str, layers: int) -> PreTrainedConfig:
    """A Llama of few layers and a small vocabulary, its layers those of a model of 1 or 8 billion parameters."""
    return LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, max_position_embeddings=131072, **SHAPES[shape])


def is_config(name: str) -> bool:
    """Whether a model's name is a config file, so that its weights are random."""
    return name.endswith(".json")


def config_of(name: str) -> PreTrainedConfig:
    """The config of a model by its name: ``"tiny"``, a hub name, a folder, or a config file."""
    if is_config(name) and not Path(name).is_file():
        raise ArgumentError(f"model {name!r}: there is no such file")
    if not is_config(name):
        refuse_irregular(name)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(local_path(name))
    except StrictDataclassError as error:
        raise ArgumentError(f"model {name!r}: its config is refused: {error}") from error
    except (OSError, ValueError) as error:
        raise ArgumentError(f"model {name!r}: its config cannot be read: {error}") from error
    family_of(config, name)
    return config


def with_random_weights(config: PreTrainedConfig, dtype: str | None, device: torch.device) -> PreTrainedModel:
    """A model of this config; float32 by default."""
    torch.manual_seed(0)
    with device:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype or "float32"])
    model.eval()
    return model


def loaded(name: str, dtype: str | None, device: torch.device) -> PreTrainedModel:
    """The model of this name; its weights in their stored type by default."""
    weights = DTYPES[dtype] if dtype else "auto"
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(local_path(name), dtype=weights)
    except (OSError, ValueError, SafetensorError) as error:
        raise ArgumentError(f"model {name!r}: its weights cannot be read: {error}") from error
    torch.nn.Module.to(model, device)
    model.eval()
    return model


def in_every_layer(name: str, model_name: str | None = None) -> Method:
    """The method of this name, acting in every layer, so that a model of few layers shows its cost."""
    everywhere = {
        ChannelScaling.name: ChannelScaling(0, 0.0, layers=None),
        MsPoE.name: MsPoE(layers=None),
        SIW.name: SIW(layers=(0, None)),
    }
    return everywhere.get(name) or get(name, model_name)
