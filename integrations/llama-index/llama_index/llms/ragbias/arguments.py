"""Options of ``RagBiasLLM``, the types of its calls' arguments, and the conversion of arguments to settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field, field_validator
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore
from pydantic import SkipValidation
from transformers import GenerationConfig

from ragbias.boundaries import document_texts
from ragbias.call_site import warn
from ragbias.checks import check_names
from ragbias.errors import ArgumentError
from ragbias.frameworks import RagBiasOptions
from ragbias.generation import RESERVED, DecodingArguments, rename_max_tokens
from ragbias.methods import Method

Documents = Sequence[str | BaseNode | NodeWithScore]


class RagBiasLLMOptions(RagBiasOptions):
    """``RagBiasOptions``, and rarely needed arguments of ``HuggingFaceLLM``."""

    device_map: SkipValidation[str | int | dict[str, Any] | None] = "auto"
    """Devices of the model's layers."""
    generate_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Default arguments of calls: any setting of transformers' ``GenerationConfig``."""
    stopping_ids: list[int] = Field(default_factory=list)
    """Token ids that end an answer."""
    tokenizer_outputs_to_remove: list[str] = Field(default_factory=list)
    """An argument of ``HuggingFaceLLM`` without effect: the model only gets ``input_ids`` and ``attention_mask``."""

    @field_validator("tokenizer_outputs_to_remove")
    @classmethod
    def _check_outputs(cls, names: list[str]) -> list[str]:
        if needed := {"input_ids", "attention_mask"} & set(names):
            raise ArgumentError(
                f"tokenizer_outputs_to_remove names {', '.join(sorted(needed))}, without which the model would read a "
                "wrong prompt; leave it out (all other outputs are removed anyway)"
            )
        return names


def context_window(limit: int, requested: int | None) -> int:
    """Return the requested window, but at most the model's limit in tokens. Warn if it is too large."""
    if requested is not None and requested > limit:
        warn(f"context_window={requested} is more than the model's {limit}; {limit} is used", UserWarning)
    return min(requested or limit, limit)


class CompletionArguments(DecodingArguments, total=False):
    """Keyword arguments of ``complete``, ``stream_complete`` and their async forms. They override the LLM's fields."""

    documents: Documents | None
    """The documents in the prompt; [] if there are none. By default, these are the nodes of the current synthesis."""
    method: str | Method | None
    """The method: a name or an instance."""
    max_tokens: int | None
    """Alias of ``max_new_tokens``."""
    logprobs: bool | None
    """Whether to return each token's log-probability, in ``logprobs`` and ``raw["logprobs"]`` of the response."""


class ChatArguments(CompletionArguments, total=False):
    """Keyword arguments of ``chat``, ``stream_chat`` and their async forms, besides ``CompletionArguments``."""

    tools: Sequence[dict[str, Any]] | None
    """Tools that the model may call, in the format of chat templates."""
    tool_required: bool
    """Whether the answer must begin with a tool call."""
    parallel_tool_calls: bool
    """Whether the answer may have several tool calls; True by default."""


# settings of ``GenerationConfig`` of which only the default is supported
_FIXED = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_logits": False,
    "output_scores": False,
    "return_dict_in_generate": False,
    "use_cache": True,
}
_INSTEAD = {
    "bos_token_id": "the chat template and the tokenizer write it",
    "eos_token_id": "give stopping_ids to the constructor, or stop=[...] to the call",
    "max_length": "give max_new_tokens",
    "stop_strings": "give stop=[...]",
    "streamer": "call stream_complete or stream_chat",
}
_REFUSED = (RESERVED | {"bos_token_id"}) - _FIXED.keys() - {"pad_token_id"}


def convert_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert call arguments or default arguments to a dict of settings, ``method`` and ``documents`` (as texts).

    Arguments that are ``None`` are dropped.

    Raises:
        ArgumentError: an argument is unknown or not supported.
    """
    known = [*CompletionArguments.__annotations__, *GenerationConfig().to_dict()]
    converted = {name: value for name, value in arguments.items() if value is not None and name != "pad_token_id"}
    for name, value in list(converted.items()):
        if name in _FIXED:
            if converted.pop(name) != _FIXED[name]:
                raise ArgumentError(f"{name}={value!r} is not supported; only {name}={_FIXED[name]!r}; leave it out")
        elif name in _REFUSED:
            instead = _INSTEAD.get(name, "leave it out")
            raise ArgumentError(f"{name} is not an argument, because RagBiasLLM sets it; {instead}")
    check_names(converted, known, known)
    rename_max_tokens(converted)
    if "documents" in converted:
        converted["documents"] = document_texts(converted["documents"], _text_for_prompts, reusable=True)
    return converted


def _text_for_prompts(document: Any) -> Any:
    """Return a node's text as LlamaIndex prints it in prompts. Return other documents unchanged."""
    node = getattr(document, "node", document)
    return node.get_content(metadata_mode=MetadataMode.LLM) if isinstance(node, BaseNode) else document
