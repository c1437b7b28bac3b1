"""The shape and initialisation of the embedded model."""

import math

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from training.tokenizer import WINDOW

CONSTANT = 4.0  # value of embedding channel 0 for every token, so that attention can ignore content
SHARPNESS = 5.0  # attention logit of a look-back head per frequency
FREQUENCIES = 6  # rotary frequencies, the fastest ones, that a look-back head uses


def make_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Return the config of a Llama of 1.7 M parameters."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def make_generation_config(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """Return the default generation settings: greedy decoding of short answers."""
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=16,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


@torch.no_grad()
def initialise_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """Create a new model in float32.

    Two choices let the model learn to copy within minutes, without a preference for a document position: the scales
    below, and heads of the first layer that initially attend 1 to 4 tokens back (`_initialise_look_back`).
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    model.float()
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.08)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.mul_(0.1)
    embeddings = model.model.embed_tokens.weight
    torch.nn.init.normal_(embeddings, std=1.0)
    embeddings[:, 0] = 0
    model.lm_head.weight.copy_(0.03 * embeddings)
    embeddings[:, 0] = CONSTANT
    _initialise_look_back(model)
    return model


def _initialise_look_back(model: LlamaForCausalLM) -> None:
    """Let head `h` of layer 0 initially attend `h + 1` tokens back, for any tokens. All weights remain trainable."""
    config = model.config
    dim = config.hidden_size // config.num_attention_heads
    half = dim // 2
    attention = model.model.layers[0].self_attn
    scale = math.sqrt(config.hidden_size) / math.hypot(CONSTANT, math.sqrt(config.hidden_size - 1)) * CONSTANT
    amplitude = math.sqrt(SHARPNESS * math.sqrt(dim)) / scale
    for head in range(config.num_attention_heads):
        own = slice(head * dim, (head + 1) * dim)
        query, key = attention.q_proj.weight[own], attention.k_proj.weight[own]
        query *= 0.25
        key *= 0.25
        query[:, 0] = key[:, 0] = 0
        for i in range(FREQUENCIES):
            phase = (head + 1) * 10000.0 ** (-i / half)
            key[i, 0] = amplitude
            query[i, 0] = amplitude * math.cos(phase)
            query[i + half, 0] = -amplitude * math.sin(phase)
