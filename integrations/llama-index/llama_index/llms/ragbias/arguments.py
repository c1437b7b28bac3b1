"""What may be said on a call, and what it becomes for `DebiasedLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from ragbias.errors import RagBiasError

OWN = ("documents", "debias", "max_new_tokens", "max_tokens", "temperature", "top_p", "top_k", "stop", "seed")

# What DebiasedLM decides itself, and what would make the model return something else than one answer.
_REFUSED = {
    "bos_token_id",
    "eos_token_id",
    "max_length",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "return_dict_in_generate",
    "stop_strings",
}


def merge(defaults: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one call: what the call says, else the defaults; None counts as not said.

    `max_tokens` is another name of `max_new_tokens`; `do_sample` becomes a temperature, which is what `DebiasedLM`
    samples by. Any other setting of transformers' `GenerationConfig` is passed on.

    Raises:
        RagBiasError: an argument is unknown, or both names of the same one are given.
    """
    merged = {**_checked(defaults), **_checked(call)}
    sample = merged.pop("do_sample", None)
    if sample is False:
        merged["temperature"] = 0.0
    elif sample and merged.get("temperature") is None:
        merged["temperature"] = 1.0
    return merged


def _checked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    known = {*OWN, *GenerationConfig().to_dict()} - _REFUSED  # type: ignore[no-untyped-call]
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in given:
        if name not in known:
            raise RagBiasError(
                f"unknown argument {name!r}; a call takes {', '.join(OWN)}, and the settings of transformers' "
                f"GenerationConfig except {', '.join(sorted(_REFUSED))}"
            )
    if "max_tokens" in given:
        if "max_new_tokens" in given:
            raise RagBiasError("max_tokens and max_new_tokens are the same; give one of them")
        given["max_new_tokens"] = given.pop("max_tokens")
    return given
