"""The supported model families: the structure of their attention, and the name of their cache.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from packaging.version import Version

from ragbias.errors import UnsupportedModelError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from ragbias.attention import Encoding

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")  # the prompt's length determines the frequencies
# transformers 5.24 renamed the key-value cache in a model's arguments and output; it still accepts the old argument
OLD_KV_CACHE = "past_key_values"
KV_CACHE = "cache" if Version(version("transformers")).release >= (5, 24) else OLD_KV_CACHE


@dataclass(frozen=True)
class Architecture:
    """The structure of attention in one family.

    Attributes:
        attention: name of the attention module inside a decoder layer.
        layers: name of the list of layers inside the decoder.
        fused: name of the fused projection of queries, keys and values; None for separate ``q_proj`` and ``k_proj``.
        per_head: whether the output of the fused projection lists query, key and value head by head.
        norm: whether ``q_norm`` and ``k_norm`` normalise each ``"head"`` or the ``"whole"`` projection; None if absent.
        positions: the positional encoding.
        interleaved: whether rotary pairs are ``(x[2i], x[2i + 1])``.
        repeated: whether the model's cos and sin list angles as ``a, a, b, b`` instead of ``a, b, a, b``.
        window: name of the config field for the maximum sequence length.
    """

    attention: str = "self_attn"
    layers: str = "layers"
    fused: str | None = None
    per_head: bool = False
    norm: Literal["head", "whole"] | None = None
    positions: Literal["rotary", "alibi"] = "rotary"
    interleaved: bool = False
    repeated: bool = False
    window: str = "max_position_embeddings"

    def project(self, module: nn.Module, hidden: Tensor, of: Literal["query", "key"]) -> Tensor:
        """Project hidden states to unrotated queries or keys, ``[batch, heads or key heads, T, d]``."""
        if self.fused is not None:
            output = module.get_submodule(self.fused)(hidden)
            query, key, _ = self.split(module, self.clipped(module, output))
            return (query if of == "query" else key).transpose(1, 2)
        projected = module.get_submodule(f"{of[0]}_proj")(hidden)
        norm = getattr(module, f"{of[0]}_norm", None) if self.norm else None
        if norm is not None and self.norm == "whole":
            projected = norm(projected)
        heads: Tensor = projected.unflatten(-1, (-1, head_dim(module)))
        if norm is not None and self.norm == "head":
            heads = norm(heads)
        return heads.transpose(1, 2)

    def split(self, module: nn.Module, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return views ``[..., heads, d]`` of queries, keys and values in the output of the fused projection."""
        heads = output.unflatten(-1, (-1, head_dim(module)))
        if self.per_head:
            query, key, value = heads.unflatten(-2, (-1, 3)).unbind(-2)
            return query, key, value
        groups = getattr(module, "num_key_value_heads", None) or heads.shape[-2] // 3
        query, key, value = heads.split((heads.shape[-2] - 2 * groups, groups, groups), dim=-2)
        return query, key, value

    def join(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Join queries, keys and values into the output of the fused projection. The inverse of ``split``."""
        import torch

        parts = (query, key, value)
        return torch.stack(parts, dim=-2).flatten(-3) if self.per_head else torch.cat(parts, dim=-2).flatten(-2)

    @staticmethod
    def clipped(module: nn.Module, output: Tensor) -> Tensor:
        """Clip the output of a projection to ``clip_qkv``, which only MPT has."""
        clip = getattr(module, "clip_qkv", None)
        return output.clamp(-clip, clip) if clip else output

    def angles(self, table: Tensor) -> Tensor:
        """Convert the model's cos or sin ``[batch, Q, r]`` to one value per pair: float32 ``[batch, 1, Q, r/2]``."""
        half = table[..., ::2] if self.repeated else table[..., : table.shape[-1] // 2]
        return half[:, None].float()

    def encoding_key(self, decoder: nn.Module, module: nn.Module, length: int) -> tuple[object, ...]:
        """Return a key for caching results of ``encoding``. Equal keys mean equal encodings."""
        kind = getattr(module, "layer_type", None)
        fixed = self.positions == "alibi" or _rope_type(decoder, kind)[0] in STATIC_ROPE
        return kind, getattr(module, "use_rope", True), 0 if fixed else length

    def encoding(self, decoder: nn.Module, module: nn.Module, length: int) -> Encoding:
        """Return the positional encoding of a layer for a prompt of ``length`` tokens."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        from ragbias.attention.keys import Alibi, Encoding, Rotary

        if self.positions == "alibi":
            two: Tensor = decoder.build_mpt_alibi_tensor(module.n_heads, 2, device="cpu")  # type: ignore[operator]
            return Alibi(-two[:, 0, 0].float())
        if not getattr(module, "use_rope", True):
            return Encoding()
        rotary: Any = decoder.get_submodule("rotary_emb")
        rope_type, layer_type = _rope_type(decoder, getattr(module, "layer_type", None))
        prefix = f"{layer_type}_" if layer_type else ""
        frequencies = getattr(rotary, f"{prefix}inv_freq")
        if rope_type in LENGTH_DEPENDENT_ROPE:  # the buffer has the frequencies of an earlier prompt
            options = {"layer_type": layer_type} if layer_type else {}
            frequencies, _ = ROPE_INIT_FUNCTIONS[rope_type](
                rotary.config, frequencies.device, seq_len=length, **options
            )
        return Rotary(frequencies, getattr(rotary, f"{prefix}attention_scaling"), self.interleaved)


def _rope_type(decoder: nn.Module, layer_type: str | None) -> tuple[str, str | None]:
    """Return a layer's rope type and layer type. The layer type is None if all layers have the same rope type."""
    kinds: Any = decoder.get_submodule("rotary_emb").rope_type
    return (kinds[layer_type], layer_type) if isinstance(kinds, dict) else (kinds, None)


def has_fixed_encodings(model: PreTrainedModel, length: int) -> bool:
    """Whether all prompts of at most ``length`` tokens have the same positional encodings."""
    architecture, decoder, modules = structure_of(model)
    longest = [architecture.encoding_key(decoder, module, length) for module in modules]
    shortest = [architecture.encoding_key(decoder, module, 1) for module in modules]
    return longest == shortest


def encodings_of(model: PreTrainedModel, length: int) -> list[Encoding]:
    """Return the positional encoding of each layer for a prompt of ``length`` tokens. Equal layers share an object."""
    architecture, decoder, modules = structure_of(model)
    keys = [architecture.encoding_key(decoder, module, length) for module in modules]
    modules_by_key = dict(zip(keys, modules, strict=True))
    shared = {key: architecture.encoding(decoder, module, length) for key, module in modules_by_key.items()}
    return [shared[key] for key in keys]


def head_dim(module: nn.Module) -> int:
    """Return the dimension of a head of this attention module."""
    return int(getattr(module, "head_dim", None) or module.head_size)  # type: ignore[arg-type]


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "mistral": Architecture(),
    "mixtral": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(norm="head"),
    "qwen3_moe": Architecture(norm="head"),
    "gemma": Architecture(),
    "gemma2": Architecture(),
    "gemma3": Architecture(norm="head"),
    "gemma3_text": Architecture(norm="head"),
    "phi3": Architecture(fused="qkv_proj"),
    "olmo2": Architecture(norm="whole"),
    "granite": Architecture(),
    "smollm3": Architecture(),
    "gpt_neox": Architecture(attention="attention", fused="query_key_value", per_head=True),
    "cohere": Architecture(norm="head", interleaved=True, repeated=True),
    "glm": Architecture(interleaved=True),
    "mpt": Architecture(attention="attn", layers="blocks", fused="Wqkv", positions="alibi", window="max_seq_len"),
}

ROTARY = tuple(name for name, architecture in ARCHITECTURES.items() if architecture.positions == "rotary")


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Return the architecture of a model. Raise ``UnsupportedModelError`` for an unknown family or rope type."""
    config: Any = getattr(model, "config", None)
    family = family_of(config, type(model).__name__)
    supported = STATIC_ROPE + LENGTH_DEPENDENT_ROPE
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    by_layer = [rope for rope in parameters.values() if isinstance(rope, dict) and "rope_type" in rope]
    for rope in by_layer or [parameters]:
        rope_type = rope.get("rope_type", "default")
        if rope_type not in supported:
            raise UnsupportedModelError(
                f"rope type {rope_type!r} of {type(model).__name__} is not supported; supported: {', '.join(supported)}"
            )
    return ARCHITECTURES[family]


def family_of(config: PreTrainedConfig | None, name: str) -> str:
    """Return the family of a config. Raise ``UnsupportedModelError``, which contains ``name``, for other families."""
    family: str = getattr(config, "model_type", name)
    if config is None or family not in ARCHITECTURES or getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"architecture {family!r} ({name}) is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return family


def window_of(config: PreTrainedConfig) -> int:
    """Return the maximum total number of tokens of a prompt and its answer, for any family."""
    text: Any = config.get_text_config()
    architecture = ARCHITECTURES.get(text.model_type, Architecture())
    return int(getattr(text, architecture.window))


class Structure(NamedTuple):
    """A model's architecture, the module with its decoder layers, and the attention module of each layer."""

    architecture: Architecture
    decoder: nn.Module
    attention: list[nn.Module]


def structure_of(model: PreTrainedModel) -> Structure:
    """Return the structure of a model. Raise ``UnsupportedModelError`` if there is nothing to attach to."""
    architecture = architecture_of(model)
    decoder: nn.Module = model if hasattr(model, architecture.layers) else model.get_decoder()
    if not hasattr(decoder, architecture.layers):
        raise UnsupportedModelError(f"{type(model).__name__} has no {architecture.layers!r} to attach to")
    layers = decoder.get_submodule(architecture.layers).children()
    attention = [layer.get_submodule(architecture.attention) for layer in layers]
    return Structure(architecture, decoder, attention)


def kv_cache_of(arguments: Mapping[str, Any]) -> Any:
    """Return the key-value cache from a model's arguments, or None. The argument may have its new or old name."""
    return arguments.get(KV_CACHE, arguments.get(OLD_KV_CACHE))
