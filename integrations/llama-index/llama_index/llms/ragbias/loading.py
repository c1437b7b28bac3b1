"""The options of `RagBiasLLM`, and the checks of arguments that `HuggingFaceLLM` takes."""

from __future__ import annotations

import warnings
from typing import Any

from llama_index.core.bridge.pydantic import Field, field_validator
from pydantic import SkipValidation

from ragbias.adapters.options import RagBiasOptions
from ragbias.errors import ArgumentError


class RagBiasLLMOptions(RagBiasOptions):
    """`RagBiasOptions`, and the rarely needed arguments of `HuggingFaceLLM`."""

    device_map: SkipValidation[str | int | dict[str, Any] | None] = "auto"
    """Where the model's layers go."""
    generate_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Default arguments of calls: sampling, or any setting of transformers' `GenerationConfig`."""
    stopping_ids: list[int] = Field(default_factory=list)
    """Token ids that end an answer."""
    tokenizer_outputs_to_remove: list[str] = Field(default_factory=list)
    """As in `HuggingFaceLLM`; the model only ever gets `input_ids` and `attention_mask`."""

    @field_validator("generate_kwargs", "tokenizer_kwargs", mode="before")
    @classmethod
    def _none_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("stopping_ids", mode="before")
    @classmethod
    def _none_is_no_ids(cls, value: Any) -> Any:
        return [] if value is None else value

    @field_validator("tokenizer_outputs_to_remove", mode="before")
    @classmethod
    def _check_outputs(cls, names: Any) -> Any:
        if needed := {"input_ids", "attention_mask"} & set(names or ()):
            raise ArgumentError(
                f"tokenizer_outputs_to_remove names {', '.join(sorted(needed))}, without which the model would read a "
                "wrong prompt; leave it out (all other outputs are removed anyway)"
            )
        return names or []


def context_window(own: int, wanted: int | None) -> int:
    """The wanted window, at most the model's own."""
    if wanted is not None and wanted > own:
        warnings.warn(f"context_window={wanted} is more than the model's {own}; {own} is used", stacklevel=2)
    return min(wanted or own, own)
