"""The arguments of ``HuggingFacePipeline`` as fields and options of the models here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import torch

from ragbias.attention import backends
from ragbias.errors import ArgumentError
from ragbias.lm import DebiasedLM
from ragbias.models.loading import torch_device

SAME = ("temperature", "top_k", "top_p", "repetition_penalty")
STOPS = ("stop_sequence", "stop_strings")
FOR_TOKENIZERS = ("cache_dir", "local_files_only", "revision", "token", "trust_remote_code")
STOCK_BACKENDS = ("default", "pipeline")  # of HuggingFacePipeline

sources: WeakKeyDictionary[DebiasedLM, tuple[str, dict[str, Any]]] = WeakKeyDictionary()
"""Name and arguments of the models loaded here."""
_identities: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()


def identity(model: torch.nn.Module) -> str:
    """A unique name for a model without one, so that caches do not mix answers."""
    return _identities.setdefault(model, uuid4().hex)


def fields_of_kwargs(pipeline_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fields from ``pipeline_kwargs``.

    Raises:
        ValueError: an argument has no counterpart here, or ``pipeline_kwargs`` is not a dict.
    """
    if pipeline_kwargs is not None and not isinstance(pipeline_kwargs, Mapping):
        raise ValueError(f"pipeline_kwargs={pipeline_kwargs!r}; expected a dict, e.g. {{'max_new_tokens': 64}}")
    given = {name: value for name, value in (pipeline_kwargs or {}).items() if value is not None}
    if given.pop("return_full_text", False):
        raise ValueError("pipeline_kwargs: return_full_text=True; answers never repeat the prompt here, leave it out")
    fields = {name: given.pop(name) for name in SAME if name in given}
    if "max_new_tokens" in given:
        fields["max_tokens"] = given.pop("max_new_tokens")
    for name in STOPS:
        if name in given:
            fields["stop"] = given.pop(name)
    sampling = given.pop("do_sample", None)
    if sampling is False:
        fields["temperature"] = None
    elif sampling:
        fields.setdefault("temperature", 1.0)
    if given:
        known = ", ".join(["max_new_tokens", *SAME, *STOPS, "do_sample", "return_full_text"])
        raise ValueError(f"pipeline_kwargs: {', '.join(sorted(given))} has no counterpart here; known are {known}")
    return fields


def fields_of(pipeline: Any) -> dict[str, Any]:
    """Model, tokenizer and settings of a ``transformers.pipeline``, as fields."""
    given: dict[str, Any] = {}
    for attribute in ("_forward_params", "_generate_kwargs"):  # where versions of transformers keep them
        given |= getattr(pipeline, attribute, {})
    given.pop("tokenizer", None)
    return {"model": pipeline.model, "tokenizer": pipeline.tokenizer, **fields_of_kwargs(given)}


def stock_arguments(
    task: str | None, backend: str, device: Any, device_map: Any, model_kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Fields and options from the arguments of ``HuggingFacePipeline.from_model_id``.

    Raises:
        ValueError: the task or backend is not supported, or a device is named twice.
    """
    if task not in (None, "text-generation"):
        raise ValueError(f"task={task!r}; only 'text-generation' is supported, with a decoder-only model")
    if backend not in (*STOCK_BACKENDS, *backends.BACKENDS):
        known = ", ".join(map(repr, backends.BACKENDS))
        raise ValueError(f"backend={backend!r}; the model runs here, expected one of {known}")
    kwargs = dict(model_kwargs or {})
    if device_map is not None:
        if device is not None:
            raise ValueError(f"device={device!r} and device_map={device_map!r}; give one of them")
        if "device_map" in kwargs:
            raise ValueError("device_map is given twice, as an argument and in model_kwargs; give it once")
        kwargs["device_map"] = device_map
    given: dict[str, Any] = {"model_kwargs": kwargs, "backend": "auto" if backend in STOCK_BACKENDS else backend}
    if device is not None:
        given["device"] = device
    if shared := {name: kwargs[name] for name in FOR_TOKENIZERS if name in kwargs}:
        given["tokenizer_kwargs"] = {**shared, **kwargs.pop("tokenizer_kwargs", {})}
    return given


def check_device(device: Any) -> None:
    """Raise ``ValueError`` for an unknown or unavailable device."""
    try:
        torch_device(device)
    except ArgumentError as error:
        raise ValueError(str(error)) from error
