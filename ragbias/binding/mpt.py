"""MPT's attention module, which calls no attention function of transformers, with the active method.

Source: the steps of ``transformers.models.mpt.modeling_mpt.MptAttention``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ragbias.binding.binding import active_binding_of

if TYPE_CHECKING:
    from ragbias.binding.architectures import Architecture


def forward_of(module: Any, architecture: Architecture) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """A forward for the attention module that calls the active binding, if there is one."""
    original = module.forward

    def forward(
        hidden_states: Tensor,
        position_bias: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        active = active_binding_of(module)
        if active is None:
            result: tuple[Tensor, Tensor | None] = original(
                hidden_states, position_bias, past_key_values, attention_mask, **kwargs
            )
            return result
        active.note(hidden_states, None)
        projected = architecture.clipped(module, module.Wqkv(hidden_states))
        query, key, value = (part.transpose(1, 2) for part in architecture.split(module, projected))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, module.layer_idx)

        def plain(query: Tensor, key: Tensor, value: Tensor = value) -> Tensor:
            return _attention(query, key, value, position_bias, attention_mask, module.softmax_scale)

        output = active.attention(module, query, key, value, plain, scale=module.softmax_scale)
        return module.out_proj(output.flatten(2)), None

    return forward


def _attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Softmax attention with a bias ``[H, 1, >= K]`` that ends at the last key, and a mask of hidden keys."""
    scores = query @ key.transpose(-1, -2) * scale + bias[..., -key.shape[2] :]
    if mask is not None:
        scores = scores.masked_fill(mask, torch.finfo(query.dtype).min)
    weights = nn.functional.softmax(scores.float(), dim=-1).to(value.dtype)
    return (weights @ value).transpose(1, 2)
