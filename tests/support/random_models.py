"""Models of every declared family with random weights, built from configs."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 300
SIZES = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
MOE = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
# every declared family with its special features, such as sliding layers, partial rotary, or layers without rope
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
    """Make a model with few layers, grouped-query heads, and weights so large that attention is far from uniform."""
    settings: dict[str, Any] = dict(
        vocab_size=VOCABULARY,
        num_hidden_layers=4,
        head_dim=16,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **SIZES,
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


@torch.no_grad()
def decisive(model: PreTrainedModel) -> PreTrainedModel:
    """Randomise norms and biases, so that they matter, with moderate values for float32."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
        elif ".layers." in name:
            parameter *= 0.7 if "q_proj" in name or "k_proj" in name else 0.5
    return model
