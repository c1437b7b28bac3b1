"""Options and constructor arguments of the integrations' models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from transformers import PreTrainedTokenizerBase

from ragbias.checks import check_dict, check_names
from ragbias.errors import ArgumentError

_SOURCE = ("trust_remote_code", "use_safetensors", "gguf_file", "revision")
FOR_LOADING = ("dtype", "torch_dtype", "device", "device_map", *_SOURCE)


class RagBiasOptions(BaseModel):
    """Rarely needed settings of a model. Each is also a keyword argument of the model's constructor."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

    top_p: float | None = None
    """Sample only from the most probable tokens that together have the probability ``top_p``."""
    top_k: int | None = None
    """Sample only from the ``top_k`` most probable tokens."""
    repetition_penalty: float | None = None
    """Penalty for tokens that occur in the prompt or answer, as in transformers. Above 1, it reduces repetition."""
    seed: int | None = None
    """Seed for sampling."""
    strip_numbering: bool = False
    """Whether to remove numbers from headers such as ``Document [3]``, because numbers reveal the order."""
    backend: str = "auto"
    """Implementation of the method's attention: ``"auto"``, ``"torch"``, ``"triton"`` or ``"flash"``."""
    reader: str = ""
    """Folder of a reader adapter for the method, see ``ragbias adapt``."""
    model: torch.nn.Module | None = Field(default=None, exclude=True, repr=False)
    """A loaded transformers model."""
    tokenizer: PreTrainedTokenizerBase | None = Field(default=None, exclude=True, repr=False)
    """A loaded tokenizer."""
    tokenizer_name: str | None = None
    """Hub name or path of the tokenizer. The default is the name of the model."""
    tokenizer_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for ``AutoTokenizer.from_pretrained``."""
    api_key: SecretStr | None = Field(default=None, exclude=True)
    """Key for the server at ``base_url``. The default is the environment variable ``RAGBIAS_API_KEY``."""
    timeout: float | None = 600.0
    """Seconds to wait for data from the server before a request fails."""
    max_retries: int = Field(default=2, ge=0)
    """Maximum number of retries of a request to the server."""


StopStrings = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""Field type for a list of strings; a single string becomes a list."""


def rename_arguments(values: Mapping[str, Any], names: Mapping[str, str], known: Collection[str]) -> dict[str, Any]:
    """Rename constructor arguments to fields. Move the arguments of ``from_pretrained`` into ``model_kwargs``.

    Args:
        names: field names by alias. ``model`` is an alias only if its value is a string.
        known: names of all fields and options.

    Raises:
        ArgumentError: an argument is unknown, given twice, or contradicts another one.
    """
    fields = dict(values)
    for name, field in names.items():
        if name not in fields or (name == "model" and not isinstance(fields[name], str)):
            continue
        value = fields.pop(name)
        if value is not None and fields.setdefault(field, value) != value:
            raise ArgumentError(f"{name}={value!r} conflicts with {field}={fields[field]!r}; pass one of them")
    for field in (*names.values(), "lm"):
        if fields.get(field, field) is None:
            del fields[field]  # ``None`` selects the default
    device, device_map = fields.get("device"), fields.get("device_map")
    if device is not None and device_map is not None:
        raise ArgumentError(f"device={device!r} and device_map={device_map!r}; give one of them")
    given = ((name, fields.pop(name, None)) for name in FOR_LOADING if name not in known)
    loading = {name: value for name, value in given if value is not None}
    check_names(fields, known, (*known, *names, *FOR_LOADING))
    if not loading:
        return fields
    check_dict("model_kwargs", fields.get("model_kwargs"))
    model_kwargs = fields.get("model_kwargs") or {}
    if twice := sorted(loading.keys() & model_kwargs.keys()):
        raise ArgumentError(f"{', '.join(twice)} is given twice, as an argument and in model_kwargs; give it once")
    if loaded := [name for name in ("lm", "model", "pipeline", "llm") if fields.get(name) is not None]:
        remedy = f"but {loaded[0]} is loaded already; leave it out"
        raise ArgumentError(f"{', '.join(loading)}: only for loading a model, {remedy}")
    return {**fields, "model_kwargs": {**model_kwargs, **loading}}


def with_options(values: Mapping[str, Any], kind: type[RagBiasOptions]) -> dict[str, Any]:
    """Move constructor arguments that are options of class ``kind`` into ``values["options"]``."""
    options = values.get("options")
    if isinstance(options, RagBiasOptions):
        options = {name: getattr(options, name) for name in options.model_fields_set}
    check_dict("options", options)
    check_names(options or (), kind.model_fields, kind.model_fields)
    given = {name: value for name, value in values.items() if name in kind.model_fields}
    rest = {name: value for name, value in values.items() if name not in kind.model_fields}
    return {**rest, "options": {**(options or {}), **given}} if given or options is not None else rest
