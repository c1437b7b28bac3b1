"""Inputs of the speed studies: a model with random or loaded weights, and prompts of random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel

from ragbias.adaptation.settings import BOUNDS
from ragbias.binding.architectures import family_of
from ragbias.checks import check_whole_between
from ragbias.errors import ArgumentError
from ragbias.generation.decoding import padded
from ragbias.methods import SIW, ChannelScaling, Method, MsPoE, get
from ragbias.methods.parsing import split_outside_brackets, without_blanks
from ragbias.models import local_path
from ragbias.models.loading import check_model_path, load_model
from ragbias.prompt import Span, TokenisedPrompt
from ragbias.readers import Lora, target_layers

SHAPES: dict[str, dict[str, Any]] = {
    "1b": dict(
        hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, head_dim=64
    ),
    "8b": dict(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128
    ),
}  # fmt: skip
# with a full vocabulary, the head would dominate decoding in a model of two layers and hide a method's cost
VOCABULARY = 4096
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PREFIX, SUFFIX = 20, 30  # tokens before and after the documents
FIRST = 3  # first token id that is drawn, because smaller ids are often special


def make_config(shape: str, layers: int) -> PreTrainedConfig:
    """Make the config of a Llama with a few layers and a small vocabulary. Layers are as in a 1B or 8B model."""
    return LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, max_position_embeddings=131072, **SHAPES[shape])


def is_config(name: str) -> bool:
    """Whether the name is a config file. Such a model gets random weights."""
    return name.endswith(".json")


def load_config(name: str) -> PreTrainedConfig:
    """Load the config of a model: ``"tiny"``, a hub name, a folder, or a config file."""
    if is_config(name) and not Path(name).is_file():
        raise ArgumentError(f"model {name!r}: the file does not exist")
    if not is_config(name):
        check_model_path(name)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(local_path(name))
    except StrictDataclassError as error:
        raise ArgumentError(f"model {name!r}: transformers refuses its config: {error}") from error
    except (OSError, ValueError) as error:
        raise ArgumentError(f"model {name!r}: its config cannot be read: {error}") from error
    family_of(config, name)
    return config


def make_model(config: PreTrainedConfig, name: str | None, dtype: str | None, device: torch.device) -> PreTrainedModel:
    """Load the named model, or make one with random weights. Default dtype: as stored, or float32 if random."""
    if name is None or is_config(name):
        torch.manual_seed(0)
        with device:
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype or "float32"])
    else:
        model = load_model(name, {"dtype": DTYPES[dtype] if dtype else "auto"})
        torch.nn.Module.to(model, device)
    model.eval()
    return model


def random_lora(model: PreTrainedModel, rank: int) -> Lora:
    """Make a reader with random weights for all linear layers of the model."""
    check_whole_between("reader_rank", rank, BOUNDS["rank"], ArgumentError)
    weights = {}
    for path, layer in target_layers(model).items():
        down, up = torch.randn(rank, layer.in_features), torch.randn(layer.out_features, rank)
        weights[path] = (down * 1e-3).to(layer.weight.device), (up * 1e-3).to(layer.weight.device)
    return Lora(weights, 1.0)


def in_every_layer(name: str, model_name: str | None = None) -> Method:
    """Make the named method act in every layer, which shows its cost in a model with few layers."""
    everywhere = {
        ChannelScaling.name: ChannelScaling(0, 0.0, layers=None),
        MsPoE.name: MsPoE(layers=None),
        SIW.name: SIW(layers=(0, None)),
    }
    return everywhere.get(name) or get(name, model_name)


def methods_in_every_layer(text: str, model_name: str | None) -> dict[str, Method]:
    """Create the methods of a comma-separated list, by label."""
    return {
        label: in_every_layer(label, model_name) for label in split_outside_brackets(without_blanks(text), ",", text)
    }


@dataclass(frozen=True)
class PromptBatch:
    """A padded batch of prompts.

    Attributes:
        ids: ``[batch, T]``, padded on the left.
        mask: ``[batch, T]``, 0 for padding.
        spans: document spans of each sequence, counted with padding.
    """

    prompts: Sequence[TokenisedPrompt]
    ids: Tensor
    mask: Tensor
    spans: list[list[Span]]

    @cached_property
    def has_padding(self) -> bool:
        return len({len(prompt.ids) for prompt in self.prompts}) > 1

    def inputs(self, step: int) -> dict[str, Any]:
        """Return a forward pass's arguments except the tokens. Step 0 is the prompt; later steps are single tokens."""
        if not self.has_padding:
            return {}
        mask = torch.cat((self.mask, self.mask.new_ones(len(self.mask), step)), dim=1)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        return {"attention_mask": mask, "position_ids": positions[:, -1:] if step else positions}


def document_lengths(documents: int, tokens: int, total: int | None) -> list[int]:
    """Return each document's length: ``tokens``, or a share of ``total``. The first documents get the remainder."""
    if total is None:
        return [tokens] * documents
    return [total // documents + (index < total % documents) for index in range(documents)]


def draw_prompts(
    lengths: Sequence[int], count: int, vocabulary: int, device: torch.device, ragged: bool = False
) -> PromptBatch:
    """Draw ``count`` prompts of random tokens with the given document lengths. Every call draws the same prompts.

    With ``ragged``, each length is drawn between 0.5 and 1.5 times the given length.
    """
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int) -> list[int]:
        drawn: list[int] = torch.randint(FIRST, vocabulary, (length,), generator=generator).tolist()
        return drawn

    def drawn(length: int) -> int:
        return int(torch.randint(-(-length // 2), 3 * length // 2 + 1, (), generator=generator))

    prompts = []
    for _ in range(count):
        own = [drawn(length) for length in lengths] if ragged else lengths
        prompts.append(TokenisedPrompt(tokens(PREFIX), [tokens(length) for length in own], tokens(SUFFIX)))
    return PromptBatch(prompts, *padded(prompts, 0, device))
