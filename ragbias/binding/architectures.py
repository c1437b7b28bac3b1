"""What is known of each architecture: declared here, never forked.

A family listed here keeps rotary attention in ``decoder.layers[i].self_attn`` with separate projections, rotates the
pairs ``(x[i], x[i + d/2])``, and calls the attention interface of transformers with unscaled queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from ragbias.errors import UnsupportedModelError

STATIC_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Architecture:
    """Names inside one family's attention module.

    Attributes:
        query_norm, key_norm: norms over the head dimension after the projections, if the family has them.
    """

    query: str = "q_proj"
    key: str = "k_proj"
    query_norm: str | None = None
    key_norm: str | None = None

    def project_query(self, module: nn.Module, hidden: Tensor) -> Tensor:
        """Queries without position, ``[batch, heads, T, d]``."""
        return self._project(module, hidden, self.query, self.query_norm)

    def project_key(self, module: nn.Module, hidden: Tensor) -> Tensor:
        """Keys without position, ``[batch, key heads, T, d]``."""
        return self._project(module, hidden, self.key, self.key_norm)

    @staticmethod
    def _project(module: nn.Module, hidden: Tensor, projection: str, norm: str | None) -> Tensor:
        # .forward, not a call: the binding's own hook on the projection must not act here
        heads = getattr(module, projection).forward(hidden).unflatten(-1, (-1, module.head_dim))
        if norm is not None:
            heads = getattr(module, norm)(heads)
        swapped: Tensor = heads.transpose(1, 2)
        return swapped


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "mistral": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(query_norm="q_norm", key_norm="k_norm"),
    "gemma": Architecture(),
}


def architecture_of(model: PreTrainedModel) -> Architecture:
    """The declaration for this model.

    Raises:
        UnsupportedModelError: the family, or its rope scaling, is not known to be right.
    """
    config = getattr(model, "config", None)
    family = getattr(config, "model_type", type(model).__name__)
    if family not in ARCHITECTURES or getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"architecture {family!r} ({type(model).__name__}) is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in STATIC_ROPE:
        raise UnsupportedModelError(
            f"rope type {rope!r} of {type(model).__name__} changes its frequencies with the length and is not "
            f"supported; supported: {', '.join(STATIC_ROPE)}"
        )
    return ARCHITECTURES[family]


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The stack of decoder layers inside a model, with ``layers`` and ``rotary_emb``."""
    decoder = model if hasattr(model, "layers") else model.get_decoder()
    if not hasattr(decoder, "layers") or not hasattr(decoder, "rotary_emb"):
        raise UnsupportedModelError(f"{type(model).__name__} has no decoder layers with rotary positions to attach to")
    return decoder


def attention_sites(decoder: nn.Module) -> list[nn.Module]:
    """The attention module of each layer, in order."""
    return [layer.get_submodule("self_attn") for layer in decoder.get_submodule("layers").children()]
