"""Options and constructor arguments of the integrations' models. ``open_model`` loads a model or opens a server."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Protocol, TypeVar

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from transformers import PreTrainedTokenizerBase

from ragbias import methods
from ragbias.cache import DocumentCache
from ragbias.checks import check_dict, check_names
from ragbias.errors import ArgumentError
from ragbias.frameworks.remote import LanguageModel, RemoteLM
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.models.loading import load_model, load_tokenizer
from ragbias.models.named import no_model_message

API_KEY = "RAGBIAS_API_KEY"
_PLACEMENT = ("dtype", "torch_dtype", "device", "device_map")
_SOURCE = ("trust_remote_code", "use_safetensors", "gguf_file", "revision")
FOR_LOADING = _PLACEMENT + _SOURCE


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
Options = TypeVar("Options", bound=RagBiasOptions)


class ModelFields(Protocol):
    """Fields of the models of all integrations."""

    method: str | Method | None
    document_cache: DocumentCache | None
    base_url: str | None

    @property
    def model_fields_set(self) -> set[str]:
        """Names of the fields that the user set."""


def rename_arguments(values: Mapping[str, Any], names: Mapping[str, str], known: Collection[str]) -> dict[str, Any]:
    """Rename constructor arguments to fields. Move the arguments of ``from_pretrained`` into ``model_kwargs``.

    Args:
        names: the field name for each alias. ``model`` is an alias only if its value is a string.
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
    loading = {name: fields.pop(name) for name in FOR_LOADING if name in fields and name not in known}
    loading = {name: value for name, value in loading.items() if value is not None}
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


def open_model(
    fields: ModelFields, name_field: str, options: Options, lm: LanguageModel | None, model_kwargs: Mapping[str, Any]
) -> tuple[LanguageModel, Options]:
    """Return the model (``lm``, the server at ``base_url``, or a loaded one), and the options with its settings.

    Args:
        fields: the integration's model.
        name_field: name of the field that contains the model's name.
        model_kwargs: arguments for loading the model.
    """
    name: str = getattr(fields, name_field)
    if fields.method is None and fields.base_url is None and lm is None:
        fields.method = methods.default_method(name)
    if options.reader:
        fields.method = methods.get(fields.method, name or None, options.reader)
    if fields.base_url is not None:
        local: dict[str, Any] = {"lm": None if isinstance(lm, RemoteLM) else lm, "model": options.model}
        local |= {"document_cache": fields.document_cache, "reader": options.reader or None}
        for given, value in local.items():
            if value is not None:
                raise ArgumentError(f"base_url and {given}: the server has its own; give one of them")
        key = options.api_key.get_secret_value() if options.api_key else os.environ.get(API_KEY, "")
        lm = RemoteLM(fields.base_url, name or None, fields.method, key, options.timeout, options.max_retries)
    if lm is not None:
        return lm, adopt_settings(fields, options, lm)
    settings: dict[str, Any] = {name: getattr(options, name) for name in ("strip_numbering", "backend")}
    settings |= {"method": fields.method, "cache": fields.document_cache}
    model: Any = options.model
    tokenizer = options.tokenizer
    if model is None and not name:
        raise ArgumentError(
            no_model_message(f'{name_field}="Qwen/Qwen2.5-7B-Instruct", or pass lm=DebiasedLM(...) or base_url=')
        )
    if model is None and tokenizer is None and options.tokenizer_name in (None, name):
        loading = {"tokenizer_kwargs": options.tokenizer_kwargs, **model_kwargs}
        return DebiasedLM.from_pretrained(name, **settings, **loading), options
    if model is None:
        methods.get(fields.method, name)  # raises errors before the weights are read
        model = load_model(name, model_kwargs)
    if tokenizer is None:
        source = options.tokenizer_name or model.config._name_or_path
        if not source:
            raise ArgumentError("the model has no name, so its tokenizer is unknown; pass tokenizer or tokenizer_name")
        tokenizer = load_tokenizer(source, options.tokenizer_kwargs, bool(model_kwargs.get("trust_remote_code")))
    return DebiasedLM(model, tokenizer, **settings), options


def adopt_settings(fields: ModelFields, options: Options, lm: LanguageModel) -> Options:
    """Copy the settings of ``lm`` to unset fields. Return the options with the settings of ``lm``."""
    settings: dict[str, Any] = {"strip_numbering": lm.strip_numbering, "backend": lm.backend}
    requested = {name: getattr(options, name) for name in settings.keys() & options.model_fields_set}
    if "document_cache" in fields.model_fields_set:
        requested["document_cache"] = fields.document_cache
    for name, value in requested.items():
        if value != {**settings, "document_cache": lm.cache}[name]:
            raise ArgumentError(
                f"{name}={value!r} contradicts the existing model; leave it out, and set it where the model is "
                "created: in ragbias.DebiasedLM(...), or with `ragbias serve`"
            )
    fields.document_cache = lm.cache
    if fields.method is None:
        fields.method = lm.method
    methods.get(fields.method, lm.name)
    return options.model_copy(update=settings)
