"""From what users of `HuggingFaceLLM` pass to a `DebiasedLM`."""

from __future__ import annotations

import warnings
from typing import Any

from ragbias import methods
from ragbias.errors import ArgumentError
from ragbias.lm import DebiasedLM
from ragbias.models.loading import load_model, load_tokenizer


def load(
    model_name: str,
    tokenizer_name: str | None,
    model: Any,
    tokenizer: Any,
    model_kwargs: dict[str, Any],
    tokenizer_kwargs: dict[str, Any],
    settings: dict[str, Any],
) -> DebiasedLM:
    """Load what is not given as an object; `"tiny"` is the embedded model, other names are a hub's or a path.

    `settings` are those of `DebiasedLM`.
    """
    if model is None and tokenizer is None and tokenizer_name in (None, model_name):
        return DebiasedLM.from_pretrained(model_name, tokenizer_kwargs=tokenizer_kwargs, **settings, **model_kwargs)
    if model is None:
        methods.get(settings["method"], model_name)  # before the weights are read
        model = load_model(model_name, model_kwargs)
    if tokenizer is None:
        name = tokenizer_name or model.config._name_or_path
        if not name:
            raise ArgumentError("model has no name to find its tokenizer by; give tokenizer or tokenizer_name")
        tokenizer = load_tokenizer(name, tokenizer_kwargs, bool(model_kwargs.get("trust_remote_code")))
    return DebiasedLM(model, tokenizer, **settings)


def context_window(own: int, wanted: int | None) -> int:
    """The wanted window, at most the model's own."""
    if wanted is not None and wanted > own:
        warnings.warn(f"context_window={wanted} is more than the model's {own}; {own} is used", stacklevel=2)
    return min(wanted or own, own)


def check_outputs_to_remove(names: list[str]) -> None:
    """Accept any name but those of the two outputs that the model is given.

    Raises:
        ArgumentError: the model cannot do without a named output.
    """
    needed = {"input_ids", "attention_mask"} & set(names)
    if needed:
        raise ArgumentError(
            f"tokenizer_outputs_to_remove names {', '.join(sorted(needed))}, without which the model would read a "
            "wrong prompt; leave it out (all other outputs are removed anyway)"
        )
